"""A proxy that writes the trace of what passes through it."""
