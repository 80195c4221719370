"""The chain's JSON-RPC: requests and subscriptions over websockets, on 127.0.0.1 only.

Method names, results and error codes are those of a Substrate node as far as the bittensor SDK uses them; the devnet_*
methods drive the chain for tests and supervisors. Decides nothing about the chain: author.py does.
"""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from inspect import signature
from itertools import count
from typing import Any

from loguru import logger
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from murmur.lab.devnet.author import Author
from murmur.lab.devnet.metadata import SPEC_NAME, TRANSACTION_VERSION
from murmur.lab.devnet.pool import PoolError
from murmur.lab.devnet.runtime import spec_version
from murmur.lab.devnet.state import Block
from murmur.lab.devnet.views import UnknownMethod, runtime_call
from murmur.protocol.types import peer_id

HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 4 << 20
_MAX_UNSENT = 4096
_VIEWS_KEPT = 64
_MAX_PAGE_KEYS = 1000

_METHOD_NOT_FOUND, _INVALID_PARAMS, _INVALID_REQUEST = -32601, -32602, -32600
_CLIENT_ERROR = 4003
_UNSUBSCRIPTIONS = {"author_unwatchExtrinsic", "chain_unsubscribeFinalizedHeads", "chain_unsubscribeNewHeads"}
_VERSION = {
    "specName": SPEC_NAME,
    "implName": "murmuration-devnet",
    "authoringVersion": 1,
    "implVersion": 1,
    "apis": [],
    "transactionVersion": TRANSACTION_VERSION,
    "stateVersion": 1,
}


class RpcError(Exception):
    """A JSON-RPC error answer."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Client:
    """One client: its subscriptions and its outgoing queue."""

    def __init__(self, websocket: ServerConnection) -> None:
        self.websocket = websocket
        self.unsubscribe: dict[str, Callable[[], None]] = {}
        self._unsent: asyncio.Queue[str] = asyncio.Queue(_MAX_UNSENT)

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message. A client that does not read loses its connection and never slows the chain."""
        try:
            self._unsent.put_nowait(json.dumps({"jsonrpc": "2.0", **message}))
        except asyncio.QueueFull:
            self.websocket.transport.abort()

    async def forward(self) -> None:
        while True:
            await self.websocket.send(await self._unsent.get())

    def close(self) -> None:
        for stop in self.unsubscribe.values():
            stop()
        self.unsubscribe.clear()


class Server:
    """Answers requests for one Author. Everything runs on one event loop, so every request sees whole blocks."""

    def __init__(self, author: Author, metadata: bytes) -> None:
        self._author = author
        self._state = author.state
        self._metadata = metadata
        self._ids = count(1)
        self._heads: dict[str, Client] = {}
        self._finals: dict[str, Client] = {}
        self._views: OrderedDict[tuple[str, str, bytes], str] = OrderedDict()
        author.on_block = lambda block: self._announce(block, self._heads, "chain_newHead")
        author.on_final = lambda block: self._announce(block, self._finals, "chain_finalizedHead")
        self._methods: dict[str, Callable[..., Any]] = {
            "account_nextIndex": self._next_index,
            "author_submitExtrinsic": self._submit,
            "chain_getBlock": self._get_block,
            "chain_getBlockHash": self._get_block_hash,
            "chain_getFinalizedHead": lambda: _hex(self._hash(author.finalized)),
            "chain_getHead": lambda: _hex(self._hash(self._state.head)),
            "chain_getHeader": self._get_header,
            "state_call": self._call,
            "state_getKeysPaged": self._get_keys,
            "state_getRuntimeVersion": self._get_version,
            "state_getStorage": self._get_storage,
            "state_getStorageAt": self._get_storage,
            "state_queryStorageAt": self._query_storage,
            "system_chain": lambda: "Murmuration development chain",
            "system_health": lambda: {"peers": 0, "isSyncing": False, "shouldHavePeers": False},
            "devnet_finality": self._finality,
            "devnet_info": self.info,
            "devnet_reorg": self._reorg,
            "devnet_reveals": self._reveals,
            "devnet_step": self._step,
        }
        self._subscriptions: dict[str, Callable[..., None]] = {
            "author_submitAndWatchExtrinsic": self._submit_and_watch,
            "chain_subscribeFinalizedHeads": self._follow_finals,
            "chain_subscribeNewHeads": self._follow_heads,
        }

    async def serve(self, port: int, block_seconds: float | None, ready: Callable[[str], None]) -> None:
        """Listen until cancelled; `ready` gets the URL. `block_seconds` None: blocks are made by devnet_step only."""
        log = logging.getLogger("murmur.lab.devnet.websockets")
        log.addFilter(lambda record: "handshake" not in record.getMessage())  # a client that left again: ignored
        limits: dict[str, Any] = {"max_size": MAX_REQUEST_BYTES, "compression": None}
        async with serve(self._handle, HOST, port, logger=log, **limits) as listener:
            ready(f"ws://{HOST}:{listener.sockets[0].getsockname()[1]}")
            if block_seconds is None:
                await asyncio.get_running_loop().create_future()
            else:
                await self._produce(block_seconds)

    async def _produce(self, block_seconds: float) -> None:
        due = time.monotonic() + block_seconds
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._author.build()
            # After a busy phase the next block is made at once, but never a burst of missed ones.
            due = max(due + block_seconds, time.monotonic())

    async def _handle(self, websocket: ServerConnection) -> None:
        connection = Client(websocket)
        forwarding = asyncio.create_task(connection.forward())
        try:
            async for message in websocket:
                self._answer(connection, message)
        except ConnectionClosed:
            pass
        finally:
            connection.close()
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)

    def _answer(self, connection: Client, message: str | bytes) -> None:
        identity = None
        try:
            try:
                request = json.loads(message)
                identity, method, params = request["id"], str(request["method"]), list(request.get("params") or [])
            except (ValueError, TypeError, KeyError) as error:
                raise RpcError(_INVALID_REQUEST, "Invalid request") from error
            self._dispatch(connection, identity, method, params)
        except RpcError as error:
            answer = {"code": error.code, "message": error.message}
            connection.send({"id": identity, "error": answer if error.data is None else {**answer, "data": error.data}})

    def _dispatch(self, connection: Client, identity: Any, method: str, params: list[Any]) -> None:
        try:
            if method in self._methods:
                answer = self._methods[method](*_fitting(self._methods[method], params))
                connection.send({"id": identity, "result": answer})
            elif method in self._subscriptions:
                # These send the answer themselves, before they notify: an update is queued after its subscription's id.
                subscribe = partial(self._subscriptions[method], connection, identity)
                subscribe(*_fitting(subscribe, params))
            elif method in _UNSUBSCRIPTIONS:
                stop = connection.unsubscribe.pop(str(params[0]) if params else "", None)
                if stop is not None:
                    stop()
                connection.send({"id": identity, "result": stop is not None})
            else:
                raise RpcError(_METHOD_NOT_FOUND, "Method not found", method[:80])
        except PoolError as error:
            raise RpcError(error.code, error.message, error.data) from error

    # --- heights

    def _hash(self, number: int) -> bytes:
        digest = self._state.hash_of(number)
        assert digest is not None
        return digest

    def _height(self, at: str | None) -> int:
        """Return the height whose state a request names; the head for None."""
        if at is None:
            return self._state.head
        number = self._state.number_of(_bytes(at))
        if number is None:
            raise RpcError(_CLIENT_ERROR, f"Client error: UnknownBlock: Header was not found in the database: {at}")
        if number < self._state.oldest:
            raise RpcError(_CLIENT_ERROR, f"Client error: UnknownBlock: State already discarded for {at}")
        return number

    def _block(self, at: str | None) -> Block | None:
        number = self._state.head if at is None else self._state.number_of(_bytes(at))
        return None if number is None else self._state.block(number)

    # --- chain_

    def _get_header(self, at: str | None = None) -> dict[str, Any] | None:
        block = self._block(at)
        return None if block is None else block.header

    def _get_block(self, at: str | None = None) -> dict[str, Any] | None:
        block = self._block(at)
        if block is None:
            return None
        return {"block": {"header": block.header, "extrinsics": block.extrinsics}, "justifications": None}

    def _get_block_hash(self, number: int | str | None = None) -> str | None:
        if isinstance(number, str):
            number = int.from_bytes(_bytes(number.removeprefix("0x").zfill(16)), "big")
        digest = self._state.hash_of(self._state.head if number is None else _number(number))
        return None if digest is None else _hex(digest)

    # --- state_

    def _get_storage(self, key: str, at: str | None = None) -> str | None:
        value = self._state.read(_bytes(key), self._height(at))
        return None if value is None else _hex(value)

    def _query_storage(self, keys: list[str], at: str | None = None) -> list[dict[str, Any]]:
        if not isinstance(keys, list):
            raise RpcError(_INVALID_PARAMS, "Invalid params", "expected a list of keys")
        height = self._height(at)
        values = ((key, self._state.read(_bytes(key), height)) for key in keys)
        changes = [[key, None if value is None else _hex(value)] for key, value in values]
        return [{"block": _hex(self._hash(height)), "changes": changes}]

    def _get_keys(self, prefix: str, page: int, start: str | None = None, at: str | None = None) -> list[str]:
        height = self._height(at)
        after = _bytes(start) if start else b""
        keys = self._state.keys_after(_bytes(prefix), after, min(_number(page), _MAX_PAGE_KEYS), height)
        return [_hex(key) for key in keys]

    def _get_version(self, at: str | None = None) -> dict[str, Any]:
        return _VERSION | {"specVersion": spec_version(self._author.storage_at(self._height(at)))}

    def _call(self, method: str, arguments: str, at: str | None = None) -> str:
        height = self._height(at)
        method = str(method)[:80]
        # The metadata is large and the same at every height.
        asked = method, str(arguments), b"" if method.startswith("Metadata_") else self._hash(height)
        known = self._views.get(asked)
        if known is None:
            try:
                view = runtime_call(self._author.storage_at(height), self._metadata, method, _bytes(arguments))
            except UnknownMethod as error:
                raise RpcError(_CLIENT_ERROR, f"Client error: Exported method {error} is not found") from error
            except ValueError as error:
                raise RpcError(_CLIENT_ERROR, f"Client error: bad arguments of {method}: {error}") from error
            known = self._views[asked] = _hex(view)
            while len(self._views) > _VIEWS_KEPT:
                self._views.popitem(last=False)
        return known

    # --- author_, account_

    def _next_index(self, address: str) -> int:
        try:
            peer_id(str(address))
        except ValueError as error:
            raise RpcError(_INVALID_PARAMS, "Invalid params", str(error)) from error
        return self._author.pool.next_nonce(str(address))

    def _submit(self, data: str) -> str:
        return _hex(self._author.submit(_bytes(data)))

    def _submit_and_watch(self, connection: Client, identity: Any, data: str) -> None:
        digest = self._author.submit(_bytes(data))
        subscription = self._subscription_id()

        def notify(status: str | dict[str, str]) -> None:
            self._notify(connection, "author_extrinsicUpdate", subscription, status)

        connection.unsubscribe[subscription] = lambda: self._author.unwatch(digest, notify)
        self._author.watch(digest, notify)
        connection.send({"id": identity, "result": subscription})
        notify("ready")

    # --- subscriptions

    def _subscription_id(self) -> str:
        return f"devnet-{next(self._ids)}"

    def _follow_heads(self, connection: Client, identity: Any) -> None:
        self._follow(connection, identity, self._heads, "chain_newHead", self._state.head)

    def _follow_finals(self, connection: Client, identity: Any) -> None:
        self._follow(connection, identity, self._finals, "chain_finalizedHead", self._author.finalized)

    def _follow(self, connection: Client, identity: Any, followers: dict[str, Client], event: str, number: int) -> None:
        subscription = self._subscription_id()
        followers[subscription] = connection
        connection.unsubscribe[subscription] = partial(followers.__delitem__, subscription)
        connection.send({"id": identity, "result": subscription})
        self._notify(connection, event, subscription, self._state.block(number).header)  # the chain's current block

    def _announce(self, block: Block, followers: dict[str, Client], event: str) -> None:
        for subscription, connection in followers.items():
            self._notify(connection, event, subscription, block.header)

    @staticmethod
    def _notify(connection: Client, event: str, subscription: str, result: Any) -> None:
        connection.send({"method": event, "params": {"subscription": subscription, "result": result}})

    # --- devnet_

    def _step(self, blocks: int = 1) -> dict[str, Any]:
        for _ in range(_number(blocks)):
            self._author.build()
        return self.info()

    def _reorg(self, depth: int, drop: bool = False, empty_blocks: int = 0) -> dict[str, Any]:
        try:
            self._author.reorg(_number(depth), drop=drop, empty_blocks=_number(empty_blocks))
        except ValueError as error:
            raise RpcError(_INVALID_PARAMS, "Invalid params", str(error)) from error
        logger.info("reorganised the chain", depth=depth, head=self._state.head)
        return self.info()

    def _finality(self, lag_blocks: int) -> dict[str, Any]:
        """Change how far finality trails the head from the next block on; a large lag is a stall."""
        self._author.finality_lag_blocks = _number(lag_blocks)
        return self.info()

    def _reveals(self, reveals: bool) -> dict[str, Any]:
        """Open sealed weights when they are due, or let them lie."""
        self._author.reveals = bool(reveals)
        return self.info()

    def info(self) -> dict[str, Any]:
        return {
            "genesis": _hex(self._hash(0)),
            "head": self._state.head,
            "finalized": self._author.finalized,
            "oldest": self._state.oldest,
            "netuid": self._author.netuid,
            "waiting": len(self._author.pool),
        }


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _bytes(text: Any) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except (AttributeError, ValueError) as error:
        raise RpcError(_INVALID_PARAMS, "Invalid params", "expected 0x-prefixed hex") from error


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise RpcError(_INVALID_PARAMS, "Invalid params", "expected a whole number from 0 to 2**32 - 1")
    return value


def _fitting(function: Callable[..., Any], params: list[Any]) -> list[Any]:
    """Return the parameters, if their number fits the function."""
    try:
        signature(function).bind(*params)
    except TypeError as error:
        raise RpcError(_INVALID_PARAMS, "Invalid params", str(error)) from error
    return params
