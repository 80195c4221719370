"""A cluster's decisions as pure functions: which members live, whether a round ends, whose updates it has, how long
a member trains. Their inputs come from murmur/cluster/ledger.py."""
