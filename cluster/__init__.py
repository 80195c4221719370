"""A cluster's decisions as pure functions: which members live, whether a round ends, whose updates it has, how many
steps a member plans. Their inputs come from node/cluster/ledger.py."""
