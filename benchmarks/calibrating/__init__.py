"""The simulated engine held against a real one: what was measured, and how far it is off."""
