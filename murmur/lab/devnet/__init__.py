"""A development chain in one process: the Substrate JSON-RPC of the bittensor SDK, over a real runtime's metadata.

It is a *single-operator development chain, not consensus*: the operator of the process decides everything; there is no
second node, no proof of authority, no trie. Its purpose is to run the unmodified SDK and this project's one adapter
against the real interfaces on one machine. Its subnet has a real one's settings and rules: fees, a pool's price,
emission as stake, commit-reveal. docs/decisions/0030-a-devnet-with-a-real-subnets-rules.md lists what it covers, what
it leaves out, and the sources. Listens on 127.0.0.1 only; never expose it.
"""
