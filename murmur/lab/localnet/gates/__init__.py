"""Gates between nodes and their servers, which can be made to fail: `murmur devnet --fault`, and tests."""
