"""A development chain in one process: the Substrate JSON-RPC of the bittensor SDK, over a real runtime's metadata.

It is a *single-operator development chain, not consensus*: whoever runs the process decides everything, there is no
second node, no proof of authority, no trie. It exists so that the unmodified SDK and this project's one adapter run
against the real interfaces on one machine. Listens on 127.0.0.1 only; never expose it.

    metadata.py    the runtime's metadata, taken once from the SDK's source distribution
    codec.py       SCALE by that metadata: storage keys and values, calls, events, errors
    state.py       versioned keys, blocks and pool in SQLite; reads at any kept height; rollback
    storage.py     typed access to storage items, with nested transactions
    genesis.py     block 0: one subnet, its owner, funded accounts
    extrinsic.py   parsing signed extrinsics, mortality, signatures
    call.py        what a call sees while it runs
    pool.py        what waits for a block: validity, nonces, order
    runtime.py     executing extrinsics; its calls: balances, commitments, neurons, staking, weights, admin; epoch
    views.py       the runtime APIs behind state_call (metagraph, neurons, hyperparameters)
    author.py      producing blocks, finality, reorgs
    server.py      JSON-RPC and subscriptions over websockets
    launch.py      starting the process from a supervisor or a test, and its admin calls
"""
