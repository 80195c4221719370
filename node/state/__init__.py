"""What a node holds and keeps on its disk: theta, its log, a miner's own state, earlier payloads."""
