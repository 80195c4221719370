"""Decisions of a cluster's members as pure functions: who lives, whether a round ends, whose updates it has, how many
steps a member plans. What they decide on comes from node/cluster/ledger.py."""
