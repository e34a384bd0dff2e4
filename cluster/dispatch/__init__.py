"""How an order reaches a node and its outcome comes back."""
