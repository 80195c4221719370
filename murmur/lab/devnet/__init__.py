"""A development chain in one process: the Substrate JSON-RPC of the bittensor SDK, over a real runtime's metadata.

It is a *single-operator development chain, not consensus*: the operator of the process decides everything; there is no
second node, no proof of authority, no trie. Its purpose is to run the unmodified SDK and this project's one adapter
against the real interfaces on one machine. Its subnet has a real one's settings and rules: fees, a pool's price,
emission as stake, commit-reveal. docs/decisions/0030-a-devnet-with-a-real-subnets-rules.md lists what it covers, what
it leaves out, and the sources. Listens on 127.0.0.1 only; never expose it.

    metadata.py    the runtime's metadata, taken once from the SDK's source distribution
    codec.py       SCALE by that metadata: storage keys and values, calls, events, errors
    state.py       versioned keys, blocks and pool in SQLite; reads at any kept height; rollback
    recorded.py    the chain in that database, read while the process runs or after its end
    storage.py     typed access to storage items, with nested transactions
    genesis.py     block 0: one subnet, its owner, funded accounts
    extrinsic.py   parsing signed extrinsics, mortality, signatures
    call.py        the context of a running call
    pool.py        extrinsics that wait for a block: validity, nonces, order
    runtime.py     executing a block: refusals, charges, the table of calls
    fees.py        the cost of a call and its payer
    balances.py, commitments.py, neurons.py, market.py, staking.py, weights.py, timelock.py, admin.py
                   the calls: money, slots, registration, the pool of alpha, stake, weights, sealed weights, settings
    epoch.py       permits, consensus, emission
    views.py       the runtime APIs behind state_call (metagraph, neurons, hyperparameters, fees)
    author.py      producing blocks, finality, reorgs
    server.py      JSON-RPC and subscriptions over websockets
    launch.py      starting the process from a supervisor or a test, and its admin calls
"""
