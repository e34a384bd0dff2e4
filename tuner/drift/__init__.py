"""Whether today's traffic is still what a study was tuned on, and whether its choice still stands."""
