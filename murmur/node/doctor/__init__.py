"""The checks that a node has to pass before it starts: one list for every start and for `murmur doctor`."""
