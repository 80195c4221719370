"""Following the chain: its blocks, what was agreed on it, what it asks of a node, our own slot and weights."""
