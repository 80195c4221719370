"""What a cluster's member has in place of a chain: the group's keys, the shared bucket's ledger, heartbeats."""
