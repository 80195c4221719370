"""A chain's gate: a JSON-RPC proxy for one node that shows an old head, another genesis, or nothing."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import WebSocketException

from murmur.lab.localnet.gates.kinds import BEHIND_SECONDS, CHAIN

_POLL_SECONDS = 0.25
_KEPT_SECONDS = 2 * BEHIND_SECONDS
_HEADS = ("chain_getFinalizedHead", "chain_getHead")
_NEWS = ("chain_newHead", "chain_finalizedHead", "chain_allHead")
_POSTS = ("author_submitExtrinsic", "author_submitAndWatchExtrinsic")
_REFUSAL = {"code": 1010, "message": "Invalid Transaction", "data": "the pool takes nothing now"}

Kinds = Callable[[], frozenset[str]]


class Heads:
    """The final heads of a chain by the time at which each was the newest, of the last minutes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: deque[tuple[float, str]] = deque()

    async def follow(self) -> None:
        """Read them, for ever."""
        while True:
            with suppress(OSError, WebSocketException):
                async with connect(self._url, max_size=None) as far:
                    await self._fill(far)
                    while True:
                        self._note(time.monotonic(), await _ask(far, "chain_getFinalizedHead"))
                        await asyncio.sleep(_POLL_SECONDS)
            await asyncio.sleep(_POLL_SECONDS)

    def at(self, when: float) -> str | None:
        """Return the hash of the head at this moment (`time.monotonic()`)."""
        found = None
        for moment, head in self._seen:
            if found is not None and moment > when:
                break
            found = head
        return found

    async def _fill(self, far: ClientConnection) -> None:
        """Note the heads of before the gate began, as far as their blocks' numbers tell when that was."""
        if self._seen:
            return
        head = await _ask(far, "chain_getHeader", None)
        number, now = int(head["number"], 16), time.monotonic()
        pause = BEHIND_SECONDS / 100
        for back in range(100, 0, -1):
            if (block := number - 2 * back) >= 0:
                self._note(now - back * pause, await _ask(far, "chain_getBlockHash", block))

    def _note(self, when: float, head: str) -> None:
        if not self._seen or self._seen[-1][1] != head:
            self._seen.append((when, head))
        while len(self._seen) > 2 and self._seen[1][0] < when - _KEPT_SECONDS:
            self._seen.popleft()


class ChainGate:
    """The gate of one node. `kinds` returns its present faults."""

    def __init__(self, url: str, heads: Heads, kinds: Kinds) -> None:
        self._url, self._heads, self._kinds = url, heads, kinds
        self._frozen_at: float | None = None

    async def serve(self, near: ServerConnection) -> None:
        """Serve one connection; a fault that breaks connections ends it."""
        if "chain-gone" in self._kinds():
            near.transport.abort()
            return
        with suppress(OSError, WebSocketException):
            async with connect(self._url, max_size=None) as far:
                ways = [self._there(near, far), self._back(near, far), self._break(near)]
                tasks = [asyncio.create_task(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()

    async def _there(self, near: ServerConnection, far: ClientConnection) -> None:
        with suppress(WebSocketException):
            async for message in near:
                body = json.loads(message)
                if "chain-mute" in self._kinds():
                    continue
                told = [self._asked(one) for one in body] if isinstance(body, list) else [self._asked(body)]
                answers, passed = [one for one in told if "method" not in one], [one for one in told if "method" in one]
                if answers:
                    await near.send(json.dumps(answers if isinstance(body, list) else answers[0]))
                if passed:
                    await far.send(json.dumps(passed if isinstance(body, list) else passed[0]))

    async def _back(self, near: ServerConnection, far: ClientConnection) -> None:
        with suppress(WebSocketException):
            async for message in far:
                kinds = self._kinds() & CHAIN.keys()
                news = '"method"' in str(message)[:80] and any(name in str(message)[:200] for name in _NEWS)
                if "chain-mute" in kinds or (news and kinds & {"chain-frozen", "chain-behind"}):
                    continue
                await near.send(message)

    async def _break(self, near: ServerConnection) -> None:
        while "chain-gone" not in self._kinds():
            await asyncio.sleep(_POLL_SECONDS)
        near.transport.abort()

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request as it goes on, or the answer to it."""
        method, params, kinds = request.get("method"), request.get("params") or [], self._kinds()
        if (head := self._old_head(kinds)) is not None:
            if method in _HEADS or (method == "chain_getBlockHash" and params in ([], [None])):
                return _result(request, head)
            if method == "chain_getHeader" and params in ([], [None]):
                return {**request, "params": [head]}
        if "chain-other" in kinds and method == "chain_getBlockHash" and params == [0]:
            return _result(request, "0x" + "5a" * 32)
        if "chain-refuses" in kinds and method in _POSTS:
            return {"jsonrpc": "2.0", "id": request.get("id"), "error": _REFUSAL}
        return request

    def _old_head(self, kinds: frozenset[str]) -> str | None:
        """Return the head to show in place of the newest."""
        now = time.monotonic()
        if "chain-frozen" not in kinds:
            self._frozen_at = None
        elif self._frozen_at is None:
            self._frozen_at = now
        if self._frozen_at is not None:
            return self._heads.at(self._frozen_at)
        return self._heads.at(now - BEHIND_SECONDS) if "chain-behind" in kinds else None


def _result(request: dict[str, Any], value: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": value}


async def _ask(far: ClientConnection, method: str, *params: object) -> Any:
    await far.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}))
    return json.loads(await far.recv())["result"]
