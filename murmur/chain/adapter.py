"""The Chain port over the bittensor SDK (pinned 11.3.*): one subnet of finney, of the devnet, or of any chain whose
runtime has the two pallets that the protocol uses.

Reads name a finalised block and are pinned to its hash. This module decides nothing: it returns the protocol's types
and raises failures as ChainError. Every call has a hard time-out (murmur/chain/session.py); a submission is followed by
blocks (murmur/chain/submission.py). The first call creates the client, so a chain opened before a fork is safe to use
after it. Source: docs/protocol.md sections 1, 4, 6 and 9.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from murmur.chain import reading
from murmur.chain.archives import Archives, StateReader
from murmur.chain.connection import Connection
from murmur.chain.extrinsics import Call, send_call
from murmur.chain.finality import Finality, remember
from murmur.chain.keys import require_sdk
from murmur.chain.session import Session
from murmur.chain.slots import encode_fields
from murmur.chain.submission import Send, Submissions, Written
from murmur.chain.weights import compose, rehearse, require_meaning
from murmur.protocol.errors import STATE_PRUNED, ChainError, ConfigError
from murmur.protocol.types import Header, Peer, PeerId, Subnet, Uid
from murmur.proxies import impose

if TYPE_CHECKING:
    from bittensor import Substrate
    from bittensor.result import ExtrinsicResult
    from bittensor.wallet import Wallet

T = TypeVar("T")

_PEERS_KEPT = 8
_EPOCHS_BACK = 8
"""Commits of older epochs are revealed, or forgotten."""
_RAO = 10**9


def open_chain(
    network: str,
    netuid: int,
    wallet: "Wallet | None",
    *,
    local: bool = False,
    fallback_endpoints: Sequence[str] = (),
    archives: Sequence[str] | None = None,
    call_timeout_seconds: float = 30.0,
    substrate_factory: "Callable[[], Substrate] | None" = None,
) -> "SubtensorChain":
    """Open a chain by network name ("finney", "test", "local") or ws:// URL. Connects on first use.

    - `wallet`: signs with its hotkey (murmur.chain.keys.open_wallet); None gives a read-only chain.
    - `local`: the run's spec says that it is local, so weights may be sealed to the chain's own beacon.
    - `fallback_endpoints`: replace the public fall-back endpoints that the SDK has for a named network.
    - `archives`: replace its public archives. URLs of nodes that are asked for state that the chain's node has pruned,
      all of them within one call's time-out.
    - `substrate_factory`: replaces the transport and is called for each new session, to run the adapter on other
      runtimes.
    """
    if substrate_factory is None:
        require_sdk()
        substrate_factory = _rpc_factory(network, tuple(fallback_endpoints))
    asked = Archives(lambda genesis: _open_archives(network, archives, call_timeout_seconds, genesis))
    connection = Connection(network, call_timeout_seconds, substrate_factory)
    return SubtensorChain(StateReader(connection, asked), netuid, wallet, local)


def _open_archives(
    network: str, urls: Sequence[str] | None, timeout_seconds: float, genesis: bytes
) -> list[Connection]:
    """Return a connection to each archive.

    Does not use the SDK's own archive support. When an archive does not answer, the SDK gives up our session with the
    chain's own node. It also never asks a second archive for state that the first lacks.
    """
    from bittensor import RpcSubstrate, settings

    if urls is None:
        urls = settings.default_archive_endpoints(network)

    def factory(url: str) -> "Callable[[], Substrate]":
        impose([url])
        return lambda: RpcSubstrate(url)

    return [Connection(url, timeout_seconds / len(urls), factory(url), genesis=genesis) for url in urls]


def resolved(network: str) -> tuple[str, str]:
    """Return a network's name and the URL of its node. Raises ConfigError."""
    from bittensor import settings

    try:
        label, endpoint = settings.resolve_endpoint(network)
    except ValueError:
        raise ConfigError(
            f"unknown network {network[:80]!r}: give one of {', '.join(sorted(settings.NETWORKS))}, "
            "or a ws:// or wss:// URL"
        ) from None
    return label, endpoint


def _rpc_factory(network: str, fallbacks: tuple[str, ...]) -> "Callable[[], Substrate]":
    def make() -> "Substrate":
        from bittensor import RpcSubstrate, settings

        label, endpoint = resolved(network)
        others = list(fallbacks) or settings.default_fallback_endpoints(label)
        impose([endpoint, *others])
        return RpcSubstrate(endpoint, fallback_endpoints=others)

    return make


class SubtensorChain:
    """murmur.protocol.ports.Chain over bittensor. Thread-safe; submissions are made one at a time."""

    def __init__(self, state: StateReader, netuid: int, wallet: "Wallet | None", local: bool) -> None:
        self.netuid = netuid
        self._state, self._connection = state, state.connection
        self._wallet = wallet
        self._local = local
        self._finality = Finality(state, self._forget)
        self._submissions = Submissions(state.connection)
        self._peers: OrderedDict[int, tuple[Peer, ...]] = OrderedDict()

    def as_local(self) -> "SubtensorChain":
        """Return this chain for a run whose spec says that it is local, over the same connection."""
        return SubtensorChain(self._state, self.netuid, self._wallet, True)

    def close(self) -> None:
        """Drop the connections. The chain stays usable: the next call opens new ones."""
        self._state.close()

    # --- reads ---------------------------------------------------------------------------------------------------

    def genesis(self) -> bytes:
        return self._connection.genesis()

    def finalized(self) -> Header:
        return self._finality.head()

    def header(self, block: int) -> Header:
        return self._finality.header(block)

    def wait(self, block: int, timeout_seconds: float) -> Header:
        return self._finality.wait(block, timeout_seconds)

    def peers(self, block: int) -> tuple[Peer, ...]:
        known = self._peers.get(block)
        if known is None:
            known = self._read(block, lambda session, at: reading.peers(session, self.netuid, at))
            remember(self._peers, block, known, _PEERS_KEPT)
        return known

    def subnet(self, block: int) -> Subnet:
        return self._read(block, lambda session, at: reading.subnet(session, self.netuid, at))

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        return self._read(block, lambda session, at: reading.weights(session, self.netuid, uid, at))

    def stands_from(self, set_in: int) -> int | None:
        final = self.finalized().block
        if set_in > final:
            return None
        epochs = self._epochs_of(set_in, final)

        def waits(block: int) -> bool | None:
            """Whether the commit waits as of a block; None where the chain's node has pruned the block."""
            try:
                return self._read(
                    block, lambda session, at: reading.commits_wait(session, self.netuid, epochs, set_in, at)
                )
            except ChainError as fault:
                if fault.code != STATE_PRUNED:
                    raise
                return None

        waited = waits(set_in)
        if waited is False:
            return set_in
        if waits(final):
            return None
        # A revealed commit is gone for good: bisect for the first block without it.
        last, first = set_in, final
        while first - last > 1:
            middle = (last + first) // 2
            found = waits(middle)
            if found is False:
                first = middle
            else:
                last, waited = middle, found
        if waited is None:
            raise ChainError(f"the state that shows when weights of block {set_in} took effect is pruned", STATE_PRUNED)
        return first

    def _epochs_of(self, block: int, final: int) -> Sequence[int]:
        """Return the subnet's epochs in which a commit of `block` may have been made. Usually a node prunes the block
        before the chain drops the commit."""
        try:
            return [self._read(block, lambda session, at: reading.epoch(session, self.netuid, at))]
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
        newest = self._read(final, lambda session, at: reading.epoch(session, self.netuid, at))
        return range(max(0, newest - _EPOCHS_BACK), newest + 1)

    def keeper(self, block: int) -> str:
        """Return network or URL of the node that serves the state of a final block: the chain's own, or an archive.
        Raises ChainError, with the code STATE_PRUNED when none does."""
        block_hash = self._finality.hash(block)
        return self._state.read(lambda session: reading.header(session, block, block_hash), block)[1]

    def balance(self) -> int:
        address = self._signing_wallet().hotkey.ss58_address
        return self._read(self.finalized().block, lambda session, at: reading.payer(session, address, at))[1]

    def head(self) -> int:
        """Return the number of the best block, final or not."""
        return self._connection.head()

    def reach(self, timeout_seconds: float) -> None:
        """Raise ChainError when the chain does not answer within this time, which may be shorter than a call's."""

        async def ask(session: Session) -> None:
            await session.substrate.block_number()

        self._connection.call(ask, timeout_seconds=timeout_seconds)

    def require_weights(self, weights: Mapping[Uid, float]) -> None:
        """Raise ChainError for any reason for which `set_weights` would be refused, except the rate limit. Sends
        nothing."""
        peer = PeerId(bytes(self._signing_wallet().hotkey.public_key))
        require_meaning(weights)
        self.call(lambda session: rehearse(session, self.netuid, peer, weights, local=self._local))

    # --- writes --------------------------------------------------------------------------------------------------

    def publish(self, fields: tuple[bytes, ...]) -> int:
        wallet = self._signing_wallet()
        call = Call("Commitments", "set_commitment", {"netuid": self.netuid, "info": encode_fields(fields)})
        before = self._own_slot(wallet)

        def written() -> int | None:
            now = self._own_slot(wallet)
            return now[0] if now[0] > before[0] and now[1] == fields else None

        async def send(session: Session, again: bool) -> "ExtrinsicResult":
            return await send_call(session, call, wallet.hotkey, again=again)

        return self._submit_own(wallet, send, written)

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        wallet = self._signing_wallet()
        peer = PeerId(bytes(wallet.hotkey.public_key))
        require_meaning(weights)
        before = self._own_update(wallet)

        def written() -> int | None:
            now = self._own_update(wallet)
            return now if now > before else None

        async def send(session: Session, again: bool) -> "ExtrinsicResult":
            call = await compose(session, self.netuid, peer, weights, local=self._local)
            return await send_call(session, call, wallet.hotkey, again=again)

        self._submit_own(wallet, send, written)
        block = written()
        if block is None:
            raise ChainError("set_weights was included but last_update did not move: a fork undid it; set them again")
        return block

    def submit(self, send: Send, written: Written) -> int:
        """Submit with any key until it is in a block; return the block's number."""
        return self._submissions.submit(send, written)

    def call(self, call: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Run one coroutine on the connection. Every failure is a ChainError."""
        return self._connection.call(call)

    # --- inside --------------------------------------------------------------------------------------------------

    def _read(self, block: int, read: Callable[[Session, str], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `read` for the final block of this number, given its hash."""
        block_hash = self._finality.hash(block)
        return self._state.read(lambda session: read(session, block_hash), block)[0]

    def _submit_own(self, wallet: "Wallet", send: Send, written: Written) -> int:
        """Submit a call of our hotkey, whose owner pays the fees."""
        try:
            return self.submit(send, written)
        except ChainError as error:
            if error.code != "Payment":
                raise
            raise ChainError(self._unpaid(wallet), error.code) from error

    def _unpaid(self, wallet: "Wallet") -> str:
        hotkey = wallet.hotkey.ss58_address

        try:
            owner, rao = self.call(lambda session: reading.payer(session, hotkey))
            payer = f"coldkey {owner}, which owns this hotkey and has {rao / _RAO:.9f} TAO free"
        except ChainError:
            payer = f"the coldkey that owns hotkey {hotkey}"
        return (
            f"the chain refused: Payment: the fee of this call is paid by {payer}: not enough. Until it has more, "
            "this hotkey can neither post nor set weights. Send some TAO to that coldkey (btcli wallet transfer)"
        )

    def _own_slot(self, wallet: "Wallet") -> tuple[int, tuple[bytes, ...]]:
        return self.call(lambda session: reading.own_slot(session, self.netuid, wallet.hotkey.ss58_address))

    def _own_update(self, wallet: "Wallet") -> int:
        return self.call(lambda session: reading.own_update(session, self.netuid, wallet.hotkey.ss58_address))

    def _forget(self) -> None:
        self._peers.clear()

    def _signing_wallet(self) -> "Wallet":
        if self._wallet is None:
            raise ConfigError("this chain was opened without a wallet, only to read")
        return self._wallet
