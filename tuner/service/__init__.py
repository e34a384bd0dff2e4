"""The HTTP service: the use cases of the command line for a team, with a queue before them."""
