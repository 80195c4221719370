"""The node software: protocol, chain, training, nodes, rounds, and what stands around them (docs/architecture.md)."""
