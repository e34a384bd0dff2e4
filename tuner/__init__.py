"""What a person runs: search, ledger, reports, command line. Drives the other three houses."""
