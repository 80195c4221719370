"""`murmur evaluate`: a model, or a run's checkpoints, on tasks."""
