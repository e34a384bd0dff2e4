"""A study as one page that can be sent: what was found, how sure it is, and the config to copy."""
