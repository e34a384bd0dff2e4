"""What a person runs: search, ledger, reports, command line. Drives the other three houses."""

from importlib.metadata import version

__version__ = version("llm-serving-tuner")
