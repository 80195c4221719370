"""The transaction pool: which extrinsics may wait for a block, and the order in which they are included.

Error codes and texts are those of a Substrate node's author RPC, because clients branch on them. The pool holds at most
one extrinsic per account and nonce; one with a later nonce than the account's next waits for those before it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from murmur.lab.devnet.codec import Codec
from murmur.lab.devnet.commitments import check_bounds
from murmur.lab.devnet.extrinsic import Extrinsic, ExtrinsicError, parse
from murmur.lab.devnet.timelock import check_size

MAX_WAITING = 4096
_MAX_NONCES_AHEAD = 256


class PoolError(Exception):
    """The author RPC's refusal of an extrinsic."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message if data is None else f"{message}: {data}")
        self.code = code
        self.message = message
        self.data = data


def _invalid(reason: str) -> PoolError:
    return PoolError(1010, "Invalid Transaction", reason)


@dataclass(frozen=True)
class Waiting:
    """A verified extrinsic, and the block and runtime version that its signature is anchored to."""

    extrinsic: Extrinsic
    birth: int
    birth_hash: bytes
    spec_version: int


class Pool:
    """Verified extrinsics in order of arrival. In memory; the author mirrors it to disk."""

    def __init__(
        self,
        codec: Codec,
        hash_of: Callable[[int], bytes | None],
        nonce_of: Callable[[str], int],
        refusal: Callable[[Extrinsic], str | None],
        spec_version: Callable[[], int],
    ) -> None:
        """- `hash_of`: hash of a canonical block, None above the head.
        - `nonce_of`: an account's nonce at the head.
        - `refusal`: why the runtime would not accept an extrinsic in the next block, None when it would.
        - `spec_version`: version of the runtime that makes the next block."""
        self._codec = codec
        self._hash_of = hash_of
        self._nonce_of = nonce_of
        self._refusal = refusal
        self._spec_version = spec_version
        self._waiting: dict[bytes, Waiting] = {}

    def add(self, data: bytes, next_block: int) -> Extrinsic:
        """Verify an extrinsic and queue it for `next_block` or later. Raises PoolError."""
        try:
            extrinsic = parse(data)
            call = self._codec.decode_call(extrinsic.call)
            if (call["call_module"], call["call_function"]) == ("Commitments", "set_commitment"):
                check_bounds(call["call_args"][1]["value"], extrinsic.call)
            check_size(call["call_function"], extrinsic.call)
        except (ExtrinsicError, ValueError) as error:
            raise PoolError(1002, "Verification Error", f"the extrinsic could not be decoded: {error}") from error
        if extrinsic.hash in self._waiting:
            raise PoolError(1013, "Transaction Already Imported", "0x" + extrinsic.hash.hex())
        nonce = self._nonce_of(extrinsic.signer)
        if extrinsic.nonce < nonce:
            raise _invalid("Transaction is outdated")
        if extrinsic.nonce > nonce + _MAX_NONCES_AHEAD:
            raise _invalid("Transaction will be valid in the future")
        birth = extrinsic.birth(next_block)
        birth_hash, genesis = self._hash_of(birth), self._hash_of(0)
        if birth_hash is None or genesis is None:
            raise _invalid("Transaction has an ancient birth block")
        if not extrinsic.is_signed(self._codec, genesis, birth_hash, version := self._spec_version()):
            raise _invalid("Transaction has a bad signature")
        reason = self._refusal(extrinsic)
        if reason is not None:
            raise _invalid(reason)
        for other in self._waiting.values():
            if (other.extrinsic.signer, other.extrinsic.nonce) == (extrinsic.signer, extrinsic.nonce):
                raise PoolError(1014, "Priority is too low", "another transaction of this account has the same nonce")
        if len(self._waiting) >= MAX_WAITING:
            raise PoolError(1016, "Immediately Dropped", "the transaction pool is full")
        self._waiting[extrinsic.hash] = Waiting(extrinsic, birth, birth_hash, version)
        return extrinsic

    def take(self, next_block: int) -> tuple[list[Extrinsic], list[Extrinsic]]:
        """Return (extrinsics to include in `next_block`, in order; those that can never be included any more). All
        leave the pool.

        An extrinsic can no longer be included after its nonce was used, its era ended, a reorg replaced its anchor
        block, or the runtime was upgraded.
        """
        included: list[Extrinsic] = []
        invalid: list[Extrinsic] = []
        nonces: dict[str, int] = {}
        progress = True
        while progress:
            progress = False
            for digest, waiting in list(self._waiting.items()):
                extrinsic = waiting.extrinsic
                nonce = nonces.setdefault(extrinsic.signer, self._nonce_of(extrinsic.signer))
                anchored = self._hash_of(waiting.birth) == waiting.birth_hash
                anchored = anchored and self._spec_version() == waiting.spec_version
                if not anchored or extrinsic.birth(next_block) != waiting.birth or extrinsic.nonce < nonce:
                    invalid.append(extrinsic)
                elif extrinsic.nonce == nonce:
                    included.append(extrinsic)
                    nonces[extrinsic.signer] += 1
                    progress = True
                else:
                    continue
                del self._waiting[digest]
        return included, invalid

    def next_nonce(self, address: str) -> int:
        """Return the account's next nonce, waiting extrinsics included."""
        nonce = self._nonce_of(address)
        waiting = {w.extrinsic.nonce for w in self._waiting.values() if w.extrinsic.signer == address}
        while nonce in waiting:
            nonce += 1
        return nonce

    def __len__(self) -> int:
        return len(self._waiting)
