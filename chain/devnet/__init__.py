"""A development chain in one process: the Substrate JSON-RPC of the bittensor SDK, over a real runtime's metadata.

It is a *single-operator development chain, not consensus*: whoever runs the process decides everything, there is no
second node, no proof of authority, no trie. It exists so that the unmodified SDK and this project's one adapter run
against the real interfaces on one machine, and its subnet has a real one's settings and rules: fees, a pool's price,
emission as stake, commit-reveal. What it has, what it leaves out and from where each is known stands in
docs/decisions/0030-a-devnet-with-a-real-subnets-rules.md. Listens on 127.0.0.1 only; never expose it.

    metadata.py    the runtime's metadata, taken once from the SDK's source distribution
    codec.py       SCALE by that metadata: storage keys and values, calls, events, errors
    state.py       versioned keys, blocks and pool in SQLite; reads at any kept height; rollback
    recorded.py    the chain in that database, read beside the process or after its end
    storage.py     typed access to storage items, with nested transactions
    genesis.py     block 0: one subnet, its owner, funded accounts
    extrinsic.py   parsing signed extrinsics, mortality, signatures
    call.py        what a call sees while it runs
    pool.py        what waits for a block: validity, nonces, order
    runtime.py     executing a block: what is refused, what is charged, which calls there are
    fees.py        what a call costs and who pays
    balances.py, commitments.py, neurons.py, market.py, staking.py, weights.py, timelock.py, admin.py
                   the calls: money, slots, registration, the pool of alpha, stake, weights, sealed weights, settings
    epoch.py       permits, consensus, emission
    views.py       the runtime APIs behind state_call (metagraph, neurons, hyperparameters, fees)
    author.py      producing blocks, finality, reorgs
    server.py      JSON-RPC and subscriptions over websockets
    launch.py      starting the process from a supervisor or a test, and its admin calls
"""
