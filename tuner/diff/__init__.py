"""Two configs side by side: what differs in their settings, and whether it makes a difference."""
