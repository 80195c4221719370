"""The Bittensor side of the Chain and Signer ports: keys, the adapter over the SDK, an operator's calls, the devnet.

The only package that imports `bittensor`, and only inside functions: the import costs most of a second and 47 MB, which
no `--help` should pay. It never imports storage, torch, or a package of a higher floor.
"""
