"""A measured config as files that start in production."""
