"""Following the chain: its blocks, the agreed selections, its terms for a node, our own slot and weights."""
