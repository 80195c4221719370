"""A node's state in memory and on its disk: theta, its redo log, a miner's inner state, earlier payloads."""
