"""The parts of a running node: configuration, adapters to chain and bucket, saved state, catch-up, events."""
