"""`murmur dashboard`: a read-only page over a run."""
