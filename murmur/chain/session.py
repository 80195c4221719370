"""One connection to a chain: the SDK's asynchronous transport on its own event loop and thread.

Its one purpose is the hard time-out. A call that hangs, in the network or inside the SDK, must not hang the node. So
the caller waits on a future and stops waiting when the time is up; the session is then closed and the next call opens a
new one. It does not interpret the calls.
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
    """A transport that returns None for storage that the connected runtime does not have: a feature of newer runtimes
    is then off."""

    def __init__(self, substrate: "Substrate") -> None:
        self._substrate = substrate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._substrate, name)

    async def query(self, *args: Any, **kwargs: Any) -> Any:
        # This error has no public name; the SDK's version is pinned, and a test would notice a change.
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
        """Begin `call(self)`. A caller that stops waiting cancels the future. ConnectionError when the session is
        closed."""
        if self._closed:
            raise ConnectionError("the session was closed")
        return asyncio.run_coroutine_threadsafe(self._connected_call(call), self._loop)

    def run(self, call: "Callable[[Session], Coroutine[Any, Any, T]]", timeout_seconds: float) -> T:
        """Return or raise the result of `call(self)`. Raises TimeoutError after `timeout_seconds` in any case, and
        ConnectionError when another thread closes the session meanwhile."""
        future = self.start(call)
        try:
            return result(future, timeout_seconds)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the connection. Returns at once; a loop that hangs is abandoned on its daemon thread."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._shut()))

    async def _connected_call(self, call: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
        # Not Client.connect, which also reads every token symbol and keeps them on disk, for display only.
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
        # Closing a broken connection may fail in any way, and there is nothing left to save: collect the failures as
        # results.
        await asyncio.gather(asyncio.wait_for(self.substrate.close(), _CLOSE_SECONDS), return_exceptions=True)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()


def result(future: "Future[T]", timeout_seconds: float) -> T:
    """Return or raise the result of a started call. TimeoutError when it is still running, and ConnectionError when its
    session was closed meanwhile."""
    try:
        return future.result(timeout_seconds)
    except CancelledError:
        raise ConnectionError("the session was closed during the call") from None


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failure of a transport task whose caller had stopped waiting, as with every dead endpoint."""
    logger.debug("the transport left a failure behind", failure=repr(context.get("exception")))
