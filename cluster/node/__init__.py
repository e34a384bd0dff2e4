"""What happens on the node that holds the accelerator: one trial, from engine start to outcome."""
