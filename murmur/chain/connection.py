"""The connection to a chain's node: sessions opened as needed, and every failure a ChainError.

A session that timed out or lost its connection is dropped, and the next call opens a new one. The first call creates
the session, so a connection made before a fork is safe to use after it. It does not interpret the calls.
"""

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from murmur.chain.extrinsics import refused
from murmur.chain.reading import hash_bytes
from murmur.chain.session import Session
from murmur.protocol.errors import ChainError

if TYPE_CHECKING:
    from bittensor import Substrate

T = TypeVar("T")
Call = Callable[[Session], Coroutine[Any, Any, T]]

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""Exceptions raised when an answer has another shape than the runtime's, in the SDK or here."""


class Connection:
    """One chain by the name of its network. Thread-safe. `genesis`: the hash that the chain must have."""

    def __init__(
        self,
        network: str,
        timeout_seconds: float,
        substrate_factory: "Callable[[], Substrate]",
        *,
        genesis: bytes | None = None,
    ) -> None:
        self.network = network
        self.timeout_seconds = timeout_seconds
        self.substrate_factory = substrate_factory
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._genesis = genesis

    def close(self) -> None:
        """Drop the session. The next call opens a new one."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def genesis(self) -> bytes:
        """Return the chain's genesis hash."""
        if self._genesis is None:
            self.head()  # any call opens a session, and each session begins by reading the genesis hash
            assert self._genesis is not None
        return self._genesis

    def head(self) -> int:
        """Return the number of the best block, final or not."""

        async def read(session: Session) -> int:
            return int(await session.substrate.block_number())

        return self.call(read)

    def call(self, call: Call[T], *, timeout_seconds: float | None = None, block: int | None = None) -> T:
        """Run one coroutine on the session. Every failure is a ChainError; `block` names the height for messages."""
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        with self.session(seconds, block) as session:
            return session.run(call, seconds)

    @contextmanager
    def session(self, timeout_seconds: float, block: int | None = None) -> Iterator[Session]:
        """Yield the session. Exceptions inside, of the SDK or the session, are raised as ChainError."""
        from bittensor.result import BittensorError, RpcConnectionError
        from bittensor.result import ChainError as Refusal

        session = self._open()
        try:
            yield session
        except TimeoutError:
            self._drop(session)
            raise ChainError(f"the chain at {self.network} did not answer within {timeout_seconds:.1f} s") from None
        except (RpcConnectionError, OSError) as error:
            self._drop(session)
            raise ChainError(f"the connection to the chain at {self.network} failed: {error}") from error
        except Refusal as error:
            raise refused(error, block) from error
        except BittensorError as error:
            raise ChainError(f"the chain at {self.network} could not be used: {error}") from error
        except _UNREADABLE as error:
            kind = type(error).__name__
            raise ChainError(f"the chain at {self.network} gave an answer that cannot be read ({kind})") from error

    def _open(self) -> Session:
        with self._lock:
            if self._session is None:
                self._session = Session(self.substrate_factory(), self._greet)
            return self._session

    async def _greet(self, session: Session) -> None:
        """Reject another chain behind the same name: everything cached belongs to the first one."""
        genesis = hash_bytes(await session.substrate.block_hash(0))
        if self._genesis is None:
            self._genesis = genesis
        elif self._genesis != genesis:
            fault = ChainError(
                f"the endpoint {self.network} serves another chain: genesis {genesis.hex()[:16]}, "
                f"expected {self._genesis.hex()[:16]}; correct the endpoints, or start anew on the new chain"
            )
            fault.cause = "chain_other"
            raise fault

    def _drop(self, session: Session) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
        session.close()
