"""Coming to where the run is, and staying there: the run's spec and data, catch-up, checkpoints, repair."""
