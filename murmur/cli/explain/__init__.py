"""`murmur explain`: why a miner counts or not."""
