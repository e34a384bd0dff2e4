"""Where trials run: traffic, dispatch to nodes, and on each node the engine, the replay and the counters."""
