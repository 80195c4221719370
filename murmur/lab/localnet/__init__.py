"""A complete network on one machine, on the real interfaces: devnet, S3 store, miners, validators, faults."""
