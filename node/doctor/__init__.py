"""What a node needs before it may begin: checked at every start, and by `murmur doctor`, from one list."""
