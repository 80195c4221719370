"""One connection to a chain: the SDK's asynchronous transport on an event loop and thread of its own.

Its one purpose is the hard time-out. A call that hangs, in the network or inside the SDK, must not hang the node, so
the caller waits on a future and walks away when the time is up; the session is then closed and the next call opens a
fresh one. It knows nothing of what the calls mean.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

from loguru import logger

if TYPE_CHECKING:
    from bittensor import Substrate

T = TypeVar("T")

_CLOSE_SECONDS = 2.0


class _Tolerant:
    """A transport that answers None for storage that the connected runtime does not have: what only newer runtimes
    have is not switched on."""

    def __init__(self, substrate: "Substrate") -> None:
        self._substrate = substrate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._substrate, name)

    async def query(self, *args: Any, **kwargs: Any) -> Any:
        # No public name exists for this error; the SDK's version is pinned, and a test would notice a change.
        from bittensor._transport.errors import StorageFunctionNotFound

        try:
            return await self._substrate.query(*args, **kwargs)
        except StorageFunctionNotFound:
            return None


class Session:
    """A transport, connected by the first call. Thread-safe; not usable across a fork.

    `greet` runs once after connecting, before any call; when it raises, so does the call.
    """

    def __init__(self, substrate: "Substrate", greet: "Callable[[Session], Coroutine[Any, Any, None]]") -> None:
        self.substrate = cast("Substrate", _Tolerant(substrate))
        self._greet = greet
        self._closed = False
        self._connected = False
        self._connecting = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_note)
        threading.Thread(target=self._serve, name="chain-session", daemon=True).start()

    def start(self, call: "Callable[[Session], Coroutine[Any, Any, T]]") -> "Future[T]":
        """Begin `call(self)`. Who no longer waits for it cancels it. ConnectionError when the session is closed."""
        if self._closed:
            raise ConnectionError("the session was closed")
        return asyncio.run_coroutine_threadsafe(self._connected_call(call), self._loop)

    def run(self, call: "Callable[[Session], Coroutine[Any, Any, T]]", timeout_seconds: float) -> T:
        """What `call(self)` returns or raises; TimeoutError after `timeout_seconds`, whatever the call is doing, and
        ConnectionError when another thread closed the session meanwhile."""
        future = self.start(call)
        try:
            return result(future, timeout_seconds)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Let go of the connection. Returns at once; a loop that hangs is left behind on its daemon thread."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._shut()))

    async def _connected_call(self, call: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
        # Not Client.connect: that one also reads every token symbol and keeps them on disk, for display only.
        async with self._connecting:
            if not self._connected:
                await self.substrate.connect()
                await self._greet(self)
                self._connected = True
        return await call(self)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _shut(self) -> None:
        # Closing a broken connection may fail in any way, and there is nothing left to save: failures are results.
        await asyncio.gather(asyncio.wait_for(self.substrate.close(), _CLOSE_SECONDS), return_exceptions=True)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()


def result(future: "Future[T]", timeout_seconds: float) -> T:
    """What a call that was started returns or raises. TimeoutError when it goes on, and ConnectionError when its
    session was closed meanwhile."""
    try:
        return future.result(timeout_seconds)
    except CancelledError:
        raise ConnectionError("the session was closed during the call") from None


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a task of the transport failed with after nobody waited for it any more, as with every dead endpoint."""
    logger.debug("the transport left a failure behind", failure=repr(context.get("exception")))
