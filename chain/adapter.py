"""The Chain port over the bittensor SDK (pinned 11.3.*): one subnet of finney, of the devnet, or of any chain whose
runtime has the two pallets that the protocol uses.

Reads name a finalised block and are pinned to its hash. Every call has a hard time-out (chain/session.py); a session
that timed out or lost its connection is dropped and the next call opens a new one. Nothing here decides anything:
values go out as the protocol's nouns, failures as ChainError. The client is created by the first call, so a chain
opened before a fork is safe to use after it. Source: docs/protocol.md sections 1, 4, 6 and 9.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger

from chain.extrinsics import Call, included, refused, send_call, send_weights
from chain.session import Session
from chain.slots import decode_fields, decode_slot, encode_fields
from protocol.errors import ChainError, ConfigError
from protocol.types import DIGEST_BYTES, Digest, Header, Peer, Uid, peer_id

if TYPE_CHECKING:
    from bittensor import Substrate
    from bittensor.result import ExtrinsicResult
    from bittensor.wallet import Wallet

K = TypeVar("K")
T = TypeVar("T")

_HEADERS_KEPT = 1024
_PEERS_KEPT = 8
_RECONNECT_SECONDS = 0.25
_LAST_LOOK_SECONDS = 1.0
_CONTRADICTIONS = 8
"""Answers in a row after which a lower finalised head is believed."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading an answer of another shape than the runtime's raises, in the SDK or here."""
_READ_BACK_SECONDS = 0.5
_READ_BACK_BLOCKS = 2
"""A submission that is not in the state this many blocks after the connection came back is not in the pool either."""

_ATTEMPT_TIMEOUTS, _SUBMIT_TIMEOUTS = 2, 4
"""In units of the call time-out: one attempt at a submission, which waits for its block, and the whole of it."""

_METAGRAPH = ("SubnetInfoRuntimeApi", "get_metagraph")
_SELECTIVE_METAGRAPH = ("SubnetInfoRuntimeApi", "get_selective_metagraph")
_COLUMNS = [52, 57, 59, 69]
"""SelectiveMetagraphIndex of hotkeys, validator_permit, last_update and total_stake: a twentieth of a metagraph."""


def open_chain(
    network: str,
    netuid: int,
    wallet: "Wallet | None",
    *,
    fallback_endpoints: Sequence[str] = (),
    call_timeout_seconds: float = 30.0,
    substrate_factory: "Callable[[], Substrate] | None" = None,
) -> "SubtensorChain":
    """A chain by network name ("finney", "test", "local") or ws:// URL. Connects on first use.

    `wallet` signs with its hotkey (chain.keys.open_wallet); None gives a chain to read only. A named network brings
    the SDK's public fall-back endpoints, which `fallback_endpoints` replaces. `substrate_factory` replaces the
    transport and is called for each new session: that is how the adapter is run on other runtimes.
    """
    if substrate_factory is None:
        substrate_factory = _rpc_factory(network, tuple(fallback_endpoints))
    return SubtensorChain(network, netuid, wallet, call_timeout_seconds, substrate_factory)


def _rpc_factory(network: str, fallbacks: tuple[str, ...]) -> "Callable[[], Substrate]":
    def make() -> "Substrate":
        from bittensor import RpcSubstrate, settings

        try:
            label, endpoint = settings.resolve_endpoint(network)
        except ValueError:
            raise ConfigError(
                f"unknown network {network[:80]!r}: give one of {', '.join(sorted(settings.NETWORKS))}, "
                "or a ws:// or wss:// URL"
            ) from None
        return RpcSubstrate(
            endpoint,
            fallback_endpoints=list(fallbacks) or settings.default_fallback_endpoints(label),
            archive_endpoints=settings.default_archive_endpoints(label),
        )

    return make


class SubtensorChain:
    """protocol.ports.Chain over bittensor. Thread-safe; submissions are made one at a time."""

    def __init__(
        self,
        network: str,
        netuid: int,
        wallet: "Wallet | None",
        call_timeout_seconds: float,
        substrate_factory: "Callable[[], Substrate]",
    ) -> None:
        self.netuid = netuid
        self._network = network
        self._wallet = wallet
        self._timeout = call_timeout_seconds
        self._substrate_factory = substrate_factory
        self._session: Session | None = None
        self._session_lock = threading.Lock()
        self._submit_lock = threading.Lock()
        self._genesis: bytes | None = None
        self._final = -1
        self._contradictions = 0
        """Answers in a row that name a lower finalised head than `_final`."""
        self._headers: OrderedDict[int, Header] = OrderedDict()
        self._peers: OrderedDict[int, tuple[Peer, ...]] = OrderedDict()
        self._whole_metagraph = False

    def close(self) -> None:
        """Drop the connection. The chain stays usable: the next call opens a new one."""
        with self._session_lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- reads ---------------------------------------------------------------------------------------------------

    def genesis(self) -> bytes:
        if self._genesis is None:
            self.head()  # any call opens a session, and each session begins by reading the genesis hash
            assert self._genesis is not None
        return self._genesis

    def finalized(self) -> Header:
        return self.header(self._refresh_final(self._timeout))

    def header(self, block: int) -> Header:
        known = self._headers.get(block)
        if known is not None:
            return known
        if block < 0 or (block > self._final and block > self._refresh_final(self._timeout)):
            raise ChainError(f"block {block} is not final yet: the last final block is {self._final}")

        return self._header(block)

    def _header(self, block: int) -> Header:
        known = self._headers.get(block)
        if known is None:
            known = self.call(lambda session: _read_header(session, block), block=block)
            _remember(self._headers, block, known, _HEADERS_KEPT)
        return known

    def wait(self, block: int, timeout_seconds: float) -> Header:
        deadline = time.monotonic() + timeout_seconds
        trouble: ChainError | None = None
        while True:
            remaining = deadline - time.monotonic()
            try:
                if self._final >= block or self._refresh_final(max(remaining, _LAST_LOOK_SECONDS)) >= block:
                    return self.header(block)
                # Blocks are followed by subscription: one message each, no latency. It can go silent without an
                # error, so it is trusted for one call time-out and then the head is asked for again.
                if remaining > 0:
                    self._follow(block, min(self._timeout, remaining))
            except ChainError as error:
                trouble = error
                time.sleep(max(0.0, min(_RECONNECT_SECONDS, deadline - time.monotonic())))
            if remaining <= 0:
                break
        raise ChainError(
            f"block {block} was not final within {timeout_seconds:.1f} s: the last final block seen is {self._final}"
            + (f", the last trouble: {trouble}" if trouble else "")
        )

    def peers(self, block: int) -> tuple[Peer, ...]:
        known = self._peers.get(block)
        if known is not None:
            return known
        block_hash = "0x" + self.header(block).hash.hex()
        peers = self.call(lambda session: self._read_peers(session, block_hash), block=block)
        _remember(self._peers, block, peers, _PEERS_KEPT)
        return peers

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        block_hash = "0x" + self.header(block).hash.hex()

        async def read(session: Session) -> dict[Uid, int]:
            rows = await session.substrate.query(
                "SubtensorModule", "Weights", [self.netuid, int(uid)], block_hash=block_hash
            )
            return {Uid(int(target)): int(weight) for target, weight in rows or []}

        return self.call(read, block=block)

    # --- writes --------------------------------------------------------------------------------------------------

    def publish(self, fields: tuple[bytes, ...]) -> int:
        wallet = self._signing_wallet()
        call = Call("Commitments", "set_commitment", {"netuid": self.netuid, "info": encode_fields(fields)})
        before = self._own_slot(wallet)

        def written() -> int | None:
            now = self._own_slot(wallet)
            return now[0] if now[0] > before[0] and now[1] == fields else None

        async def send(session: Session) -> "ExtrinsicResult":
            return await send_call(session, call, wallet.hotkey)

        return self.submit(send, written)

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        wallet = self._signing_wallet()
        targets = {int(uid): float(weight) for uid, weight in sorted(weights.items())}
        if not all(isfinite(weight) and weight >= 0 for weight in targets.values()) or not any(targets.values()):
            raise ValueError("weights must be finite and non-negative, and at least one positive")
        before = self._own_update(wallet)

        def written() -> int | None:
            now = self._own_update(wallet)
            return now if now > before else None

        async def send(session: Session) -> "ExtrinsicResult":
            return await send_weights(session, self.netuid, targets, wallet.hotkey)

        self.submit(send, written)
        block = written()
        if block is None:
            raise ChainError("set_weights was included but last_update did not move: a fork undid it; set them again")
        return block

    def submit(
        self, send: "Callable[[Session], Coroutine[Any, Any, ExtrinsicResult]]", written: Callable[[], int | None]
    ) -> int:
        """Run a submission that waits for its block; returns the block's number.

        `written` reads the state at the head and returns the block in which the submission took effect, None when it
        has not: it is asked when a lost connection hides the outcome, before anything is sent again. Raises
        ChainError with the chain's error name in `code`.
        """
        with self._submit_lock:
            deadline = time.monotonic() + _SUBMIT_TIMEOUTS * self._timeout
            while True:
                seconds = min(_ATTEMPT_TIMEOUTS * self._timeout, deadline - time.monotonic())
                try:
                    return included(self.call(send, timeout_seconds=seconds))
                except ChainError as error:
                    if error.code is not None:
                        raise
                    # No name, no verdict: the connection went, or the pool lost track of it.
                    logger.warning("submission lost sight of, reading the chain back", error=str(error))
                    lost = error
                block = self._read_back(written, deadline)
                if block is not None:
                    return block
                if time.monotonic() >= deadline:
                    raise lost

    def _read_back(self, written: Callable[[], int | None], deadline: float) -> int | None:
        """The block in which a submission of unknown fate took effect; None when it did not, or at the deadline."""
        first: int | None = None
        while time.monotonic() < deadline:
            try:
                head = self.head()
                block = written()
            except ChainError:
                block = None
            else:
                first = head if first is None else first
                if block is not None or head >= first + _READ_BACK_BLOCKS:
                    return block
            time.sleep(max(0.0, min(_READ_BACK_SECONDS, deadline - time.monotonic())))
        return None

    # --- the connection ------------------------------------------------------------------------------------------

    def call(
        self,
        call: Callable[[Session], Coroutine[Any, Any, T]],
        *,
        timeout_seconds: float | None = None,
        block: int | None = None,
    ) -> T:
        """Run one coroutine on the session. Every failure is a ChainError; `block` names the height for messages."""
        from bittensor.result import BittensorError, RpcConnectionError
        from bittensor.result import ChainError as Refusal

        seconds = self._timeout if timeout_seconds is None else timeout_seconds
        session = self._open_session()
        try:
            return session.run(call, seconds)
        except TimeoutError:
            self._drop(session)
            raise ChainError(f"the chain at {self._network} did not answer within {seconds:.1f} s") from None
        except (RpcConnectionError, OSError) as error:
            self._drop(session)
            raise ChainError(f"the connection to the chain at {self._network} failed: {error}") from error
        except Refusal as error:
            raise refused(error, block) from error
        except BittensorError as error:
            raise ChainError(f"the chain at {self._network} could not be used: {error}") from error
        except _UNREADABLE as error:
            kind = type(error).__name__
            raise ChainError(f"the chain at {self._network} gave an answer that cannot be read ({kind})") from error

    def head(self) -> int:
        """Number of the best block, final or not."""

        async def read(session: Session) -> int:
            return int(await session.substrate.block_number())

        return self.call(read)

    def _open_session(self) -> Session:
        with self._session_lock:
            if self._session is None:
                self._session = Session(self._network, self._substrate_factory(), self._greet)
            return self._session

    async def _greet(self, session: Session) -> None:
        """Refuse another chain behind the same name: everything remembered here belongs to the first one."""
        genesis = _hash_bytes(await session.substrate.block_hash(0))
        if self._genesis is None:
            self._genesis = genesis
        elif self._genesis != genesis:
            raise ChainError(
                f"the endpoint {self._network} now serves another chain: genesis {genesis.hex()[:16]}, "
                f"expected {self._genesis.hex()[:16]}; correct the endpoints, or start anew on the new chain"
            )

    def _drop(self, session: Session) -> None:
        with self._session_lock:
            if self._session is session:
                self._session = None
        session.close()

    def _refresh_final(self, timeout_seconds: float) -> int:
        """Number of the finalised head."""

        async def read(session: Session) -> int:
            return int(await session.substrate.finalized_block_number())

        return self._take_final(self.call(read, timeout_seconds=min(timeout_seconds, self._timeout)))

    def _take_final(self, number: int) -> int:
        """The finalised head after an answer. A higher one is believed when its block can be read; a lower one is a
        fall-back endpoint that lags, until it has been said so often by one that does not know our block."""
        if number > self._final:
            try:
                self._header(number)
            except ChainError as error:
                if self._final < 0:
                    raise
                logger.debug("a finalised head that cannot be read is not believed", block=number, error=str(error))
            else:
                self._final, self._contradictions = number, 0
        elif number < self._final:
            self._contradictions += 1
            if self._contradictions >= _CONTRADICTIONS and not self._confirmed(self._final):
                logger.warning("block {old} is not final after all: {new} is", old=self._final, new=number)
                self._final, self._contradictions = number, 0
                self._headers.clear()
                self._peers.clear()
        else:
            self._contradictions = 0
        return self._final

    def _confirmed(self, block: int) -> bool:
        """Whether the chain's node has the block, as we know it."""
        known = self._headers.get(block)

        async def read(session: Session) -> bool:
            if int(await session.substrate.block_number()) < block:
                return False
            found = Digest(_hash_bytes(await session.substrate.block_hash(block)))
            return known is None or found == known.hash

        try:
            return self.call(read)
        except ChainError:  # says nothing against it
            return True

    def _follow(self, block: int, seconds: float) -> None:
        """Return when `block` is final or `seconds` have passed."""

        async def follow(session: Session) -> int:
            number = -1
            try:
                async with asyncio.timeout(seconds), aclosing(session.client.blocks(finalized=True)) as heads:
                    async for head in heads:
                        number = int(head.number)
                        if number >= block:
                            break
            except TimeoutError:
                pass
            return number

        number = self.call(follow, timeout_seconds=seconds + self._timeout)
        if number > self._final:
            self._take_final(number)

    # --- what is read --------------------------------------------------------------------------------------------

    async def _read_peers(self, session: Session, block_hash: str) -> tuple[Peer, ...]:
        columns = await self._read_columns(session, block_hash)
        hotkeys = [str(address) for address in columns["hotkeys"]]
        registrations = await session.substrate.query_batch(
            "Commitments", "CommitmentOf", [[self.netuid, address] for address in hotkeys], block_hash=block_hash
        )
        rows = zip(
            hotkeys,
            columns["total_stake"],
            columns["validator_permit"],
            columns["last_update"],
            registrations,
            strict=True,
        )
        return tuple(
            Peer(peer_id(address), Uid(uid), int(stake), bool(permit), int(updated), decode_slot(registration))
            for uid, (address, stake, permit, updated, registration) in enumerate(rows)
        )

    async def _read_columns(self, session: Session, block_hash: str) -> dict[str, Any]:
        """Hotkeys, stakes, permits and last updates by uid, in one call. Stake comes from the runtime itself, which
        weighs alpha and root stake by rules that change with its version."""
        columns = None
        if not self._whole_metagraph:
            try:
                columns = await session.substrate.runtime_call(
                    *_SELECTIVE_METAGRAPH, [self.netuid, _COLUMNS], block_hash=block_hash
                )
            except ValueError:  # the SDK's word for a method that the runtime's metadata does not have
                columns = await session.substrate.runtime_call(*_METAGRAPH, [self.netuid], block_hash=block_hash)
                self._whole_metagraph = True
        else:
            columns = await session.substrate.runtime_call(*_METAGRAPH, [self.netuid], block_hash=block_hash)
        if not isinstance(columns, dict) or columns.get("hotkeys") is None:
            raise ChainError(f"there is no subnet {self.netuid} on the chain at {self._network}")
        return columns

    def _own_slot(self, wallet: "Wallet") -> tuple[int, tuple[bytes, ...]]:
        """Block and fields of this hotkey's slot at the head; block -1 when there is none."""
        address = wallet.hotkey.ss58_address

        async def read(session: Session) -> tuple[int, tuple[bytes, ...]]:
            value = await session.substrate.query("Commitments", "CommitmentOf", [self.netuid, address])
            return (int(value["block"]), decode_fields(value["info"])) if isinstance(value, dict) else (-1, ())

        return self.call(read)

    def _own_update(self, wallet: "Wallet") -> int:
        """`last_update` of this hotkey's uid at the head."""
        address = wallet.hotkey.ss58_address

        async def read(session: Session) -> int:
            block_hash = await session.substrate.block_hash()
            uid = await session.substrate.query("SubtensorModule", "Uids", [self.netuid, address], block_hash)
            if uid is None:
                raise ChainError(
                    f"hotkey {address} is not registered on subnet {self.netuid}", code="HotKeyNotRegisteredInSubNet"
                )
            updates = await session.substrate.query("SubtensorModule", "LastUpdate", [self.netuid], block_hash)
            return int(updates[uid])

        return self.call(read)

    def _signing_wallet(self) -> "Wallet":
        if self._wallet is None:
            raise ConfigError("this chain was opened without a wallet, to read only")
        return self._wallet


async def _read_header(session: Session, block: int) -> Header:
    block_hash = await session.substrate.block_hash(block)
    milliseconds = await session.substrate.query("Timestamp", "Now", [], block_hash=block_hash)
    return Header(block, Digest(_hash_bytes(block_hash)), int(milliseconds) / 1000.0)


def _hash_bytes(text: str) -> bytes:
    """The 32 bytes of a block's hash; ValueError, or AttributeError, for what is none."""
    found = bytes.fromhex(text.removeprefix("0x"))
    if len(found) != DIGEST_BYTES:
        raise ValueError("a block's hash has 32 bytes")
    return found


def _remember(cache: "OrderedDict[K, T]", key: K, value: T, limit: int) -> None:
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)
