"""Bring a node to the run's current state and keep it there: the run's spec and data, catch-up, checkpoints, repair."""
