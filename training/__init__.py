"""Ordinary language-model training inside one node: model, inner loop, replica, data, checkpoints.

No network: shards and checkpoints of others arrive through a `fetch` argument. Never imports storage, chain,
gauntlet or node.
"""
