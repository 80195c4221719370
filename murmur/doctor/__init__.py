"""`murmur doctor`: everything that a node needs, tried."""
