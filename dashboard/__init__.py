"""A page over a run: what its nodes did, round by round. It reads, and never needs a key."""
