"""In-memory stand-ins for the two ports of a node: fakes.chain for Chain and Signer, fakes.bucket for Bucket."""
