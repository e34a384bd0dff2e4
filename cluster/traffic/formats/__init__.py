"""Recorded traffic in the formats that people have it in, one module a format."""
