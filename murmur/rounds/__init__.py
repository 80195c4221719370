"""The rounds of a miner, a validator and a cluster's member. The programs that people start are in neurons/."""
