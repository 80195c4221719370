"""Language-model training inside one node: model, inner loop, replica, data, checkpoints.

No network: other nodes' shards and checkpoints arrive through a `fetch` argument. Never imports storage, chain,
gauntlet or node.
"""
