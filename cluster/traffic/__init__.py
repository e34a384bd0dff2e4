"""Traces and what makes them playable."""
