"""`murmur export`: a run's model for everybody's tools, and the proof."""
