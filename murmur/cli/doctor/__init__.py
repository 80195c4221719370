"""`murmur doctor`: all of a node's requirements, tested."""
