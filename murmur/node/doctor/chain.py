"""Checks of the chain and this node's place on it: wallet, subnet, registration, permit, money, weights."""

from murmur.chain.adapter import resolved
from murmur.node.chain.subnet_terms import LOW_BALANCE_RAO, RAO_PER_TAO
from murmur.node.config import adapters
from murmur.node.config.settings_sources import variable_of
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Advice, FailedCheck
from murmur.node.doctor.reach import reaction
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.types import hotkey
from murmur.proxies import way_to

REACH_SECONDS = 10.0
"""Time-out of a chain's first answer: a node with a slower chain is of no use."""
FAR_BACK_BLOCKS = 10_000
"""A day and a half at 12 s a block: a node may well be offline for this long."""
WALLET = f"--wallet.name, --wallet.hotkey and --wallet.path ({variable_of('wallet.hotkey')}, ..)"
NETWORK = f"--network ({variable_of('network')})"
NETUID = f"--netuid ({variable_of('netuid')})"
ARCHIVES = f"--archives ({variable_of('archives')})"
"""The names of these settings for an operator."""


_MORE_STAKE = ("NotEnoughStakeToSetWeights", "NeuronNoValidatorPermit")
"""The chain's refusals of weights that stake mends."""


def wallet(node: ExaminedNode) -> str:
    """Check that the hotkey's file exists and opens."""
    own = node.config.wallet
    wallet = adapters.own_wallet(node.config)
    node.signer = adapters.signer_of(wallet)
    node.wallet = wallet
    return f"hotkey {own.hotkey!r} of wallet {own.name!r}: {hotkey(node.signer.peer)}"


def chain(node: ExaminedNode) -> str:
    """Check that the chain answers."""
    config = node.config
    node.chain = adapters.own_chain(config, node.wallet)
    began = node.time.now()
    try:
        node.chain.reach(REACH_SECONDS)
        node.head = node.chain.finalized()
    except ChainError as fault:
        raise FailedCheck(
            f"{fault}. Without it nothing can be agreed or paid",
            f"check {NETWORK}, and that this machine reaches that address (a firewall, a name server, a proxy)",
            reaction(config.network, node.time.now() - began, REACH_SECONDS),
        ) from None
    way = way_to(resolved(config.network)[1])
    return f"{config.network} answers{way}; block {node.head.block} is final"


def history(node: ExaminedNode) -> str | Advice:
    """Check that the chain's own node or an archive has the state of long ago."""
    block = max(0, node.head.block - FAR_BACK_BLOCKS)
    back = f"the state of {node.head.block - block:,} blocks ago"
    try:
        keeper = node.chain.keeper(block)
    except ChainError as fault:
        if fault.code != STATE_PRUNED:
            raise
        return Advice(
            f"{back} cannot be read: {fault}. After an absence longer than its chain node keeps state this node would "
            "have to wait for others",
            f"name archives that have it: {ARCHIVES}; or let the chain's node keep more",
        )
    own = keeper == node.config.network
    return f"{back} is kept by {'the chain node itself' if own else f'an archive alone, {keeper}'}"


def subnet(node: ExaminedNode) -> str:
    """Check that the subnet exists; read its settings and peers."""
    node.subnet = node.chain.subnet(node.head.block)
    node.peers = node.chain.peers(node.head.block)
    seen = node.subnet
    return (
        f"subnet {node.config.netuid}: {len(node.peers)} hotkeys, tempo {seen.tempo}, {seen.post_bytes} bytes of posts "
        f"an epoch, weights every {seen.weights_rate_limit} blocks, "
        f"commit-reveal {'on' if seen.commit_reveal else 'off'}"
    )


def registered(node: ExaminedNode) -> str:
    """Check that the hotkey is registered on the subnet."""
    address, netuid = hotkey(node.signer.peer), node.config.netuid
    found = next((peer for peer in node.peers if peer.id == node.signer.peer), None)
    if found is None:
        own = node.config.wallet
        raise FailedCheck(
            f"hotkey {address} is not registered on subnet {netuid} of {node.config.network}: the chain would "
            "refuse its posts",
            f"register it, which costs TAO, where its coldkey is (btcli subnet register --netuid {netuid} "
            f"-w {own.name} -H {own.hotkey} --network {node.config.network}). If another of your hotkeys is "
            f"registered, name that one: {WALLET}; if this one is on another subnet or chain: {NETUID}, {NETWORK}",
        )
    node.me = found
    return f"uid {found.uid}, stake {found.stake / RAO_PER_TAO:,.2f}"


def permit(node: ExaminedNode) -> str:
    """Check that a validator has the chain's permit, so that its votes count."""
    if not node.me.validates and node.me.id != node.subnet.owner:
        permitted = [peer.stake for peer in node.peers if peer.validates]
        least = f"; the smallest with a permit has {min(permitted) / RAO_PER_TAO:,.2f}" if permitted else ""
        raise FailedCheck(
            f"hotkey {hotkey(node.me.id)} has no validator permit: its votes would not count, and the chain "
            f"would refuse its weights. Its stake is {node.me.stake / RAO_PER_TAO:,.2f}{least}",
            f"stake to it (btcli stake add --netuid {node.config.netuid}); permits are given at the end of an epoch, "
            f"{node.subnet.tempo} blocks long, so start again after the next one. To train instead, start the miner",
        )
    return "the hotkey has a validator permit"


def balance(node: ExaminedNode) -> str | Advice:
    """Check the balance for fees. Only advice, since a chain may charge none."""
    rao = node.chain.balance()
    told = f"the coldkey that owns hotkey {hotkey(node.me.id)} has {rao / RAO_PER_TAO:.6f} TAO free"
    if rao < LOW_BALANCE_RAO:
        return Advice(
            f"{told}, and pays the fees of this node's posts. If the chain charges fees, that may soon be spent",
            "send it some: btcli wallet transfer",
        )
    return told


def weights(node: ExaminedNode) -> str:
    """Check that the chain would take a validator's weights: stake, permit, its kind of commit-reveal and version."""
    chain = node.chain.as_local() if node.found.first.local else node.chain
    try:
        chain.require_weights({peer.uid: 1.0 for peer in node.peers})
    except ChainError as fault:
        if fault.code in _MORE_STAKE:
            stake = f"stake to it (btcli stake add --netuid {node.config.netuid}), and wait for the next epoch"
            raise FailedCheck(str(fault), stake) from None
        raise
    return f"the chain takes a complete row of {len(node.peers)} weights from this hotkey"
