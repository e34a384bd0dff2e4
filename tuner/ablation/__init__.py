"""Ablations: the same traffic with each factor of a chosen trial on and off, alone and combined."""
