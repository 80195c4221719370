"""A cluster member's substitutes for a chain: the group's keys, the shared bucket's ledger, heartbeats."""
