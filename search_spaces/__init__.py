"""What may be tried: parameters, conditions, constraints and the engine arguments they render to. Pure."""
