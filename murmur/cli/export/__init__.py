"""`murmur export`: a run's model in the common format, and the proof of its origin."""
