"""The simulated engine's parts: settings, KV pool, speculation, step times, the play, its counters."""
