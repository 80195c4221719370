"""What a running node is made of: configuration, adapters to chain and bucket, saved state, catch-up, events."""
