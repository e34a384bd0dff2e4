"""The values that settings take: what YAML and JSON can say, nothing else."""

Scalar = None | bool | int | float | str
"""One value of a parameter."""

Json = Scalar | list["Json"] | dict[str, "Json"]
"""One value of an engine argument."""
