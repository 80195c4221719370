"""The exception tree: one class per reaction, not one per cause.

MurmurError
├── ConfigError          the operator fixes it; exit status 2
│   ├── UpdateNeeded     the run has moved to a protocol that this release does not speak; exit status 75
│   └── DiskFull         room may come back by itself; exit status 1, after which a service manager starts it again
├── ChainError           the chain did not answer or refused; retried until the phase's deadline
├── StorageError         a bucket did not answer or refused; retried until the phase's deadline
│   ├── ObjectMissing    404: not there (yet)
│   │   └── BucketMissing   nor is the bucket: a wrong name or endpoint
│   ├── ObjectReplaced   another version than the one that was being read; read it from its beginning
│   ├── ObjectTooLarge   the size differs from the one known beforehand; nothing was read
│   ├── NotSupported     400/501: the server does not take this kind of request
│   └── AccessDenied     401/403/405: the credential is wrong or may not do this
├── InvalidSubmission    a peer's bytes break a rule; becomes a Rejection with this reason, never unwinds our loop
├── InvalidMessage       bytes from the chain or a bucket are not the canonical message expected there
├── Spoilt               a fine-tuning's rows or loss are of no use: it ends; exit status 1
├── OutOfSync            our theta is not the run's; catch up
└── CheckpointCorrupt    saved or published state does not match its digest; never used, set aside at the next start

Everything else is a bug and crashes with a traceback.
"""

from enum import StrEnum

from murmur.protocol.types import Reason


class MurmurError(Exception):
    """Root of all errors that a node reacts to. The message says what happened, why it matters and what to do."""


class ConfigError(MurmurError):
    """Something the operator has to fix: configuration, wallet, spec, disk. Programs exit with status 2."""


class UpdateNeeded(ConfigError):
    """The run needs a newer release from some round on."""


class DiskFull(ConfigError):
    """What has to be saved does not fit on the disk. Programs exit with status 1: who fills a disk for a moment must
    not end a node for good."""


STATE_PRUNED = "StatePruned"
"""`ChainError.code` of a read at a height whose state this chain node no longer has: a retry is useless."""


UNKNOWN_KEY, WRONG_SECRET = "InvalidAccessKeyId", "SignatureDoesNotMatch"
"""`AccessDenied.code` if the server does not know the access key, and if the secret does not belong to the key."""


UNKNOWN_BEACON = "UnknownBeacon"
"""`ChainError.code` of weights that would have to be sealed to a beacon that this run may not use."""


class ChainError(MurmurError):
    """The chain is unreachable, too slow, or refused a call. `code` is the chain's own error name if it gave one, or
    StatePruned or UnknownBeacon. `cause` names the trouble, where a chain that answers is at fault
    (murmur/node/telemetry/causes.py)."""

    cause: str | None = None

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(one_line(message))
        self.code = code


MESSAGE_CHARACTERS = 1000


def one_line(text: str, most: int = MESSAGE_CHARACTERS) -> str:
    """Return a text that may quote a stranger as one bounded line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())[:most]


class StorageCause(StrEnum):
    """Why a store refuses, as far as its answer or silence shows."""

    FULL = "full"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    SUSPENDED = "suspended"
    CLOCK = "clock"
    UNKNOWN_KEY = "unknown_key"
    WRONG_SECRET = "wrong_secret"
    DENIED = "denied"
    NO_BUCKET = "no_bucket"
    SILENT = "silent"
    UNREACHABLE = "unreachable"


class StorageError(MurmurError):
    """A bucket failed: unreachable, slow, broken body, 5xx. `cause`: why, where the store has shown it. `seen`: request
    and status alone, for who names the cause. `own`: the kind of request, where it was to the node's own bucket."""

    cause: StorageCause | None = None
    seen: str = ""
    own: str = ""


class ObjectMissing(StorageError):
    """The object is not there."""


class BucketMissing(ObjectMissing):
    """There is no bucket of this name, as far as the server shows."""

    cause = StorageCause.NO_BUCKET


class ObjectReplaced(StorageError):
    """The object is no longer the version whose ETag was given."""


class ObjectTooLarge(StorageError):
    """The object's size is not the one allowed; it was refused unread. `size_bytes` is the server's claim."""

    def __init__(self, message: str, size_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class NotSupported(StorageError):
    """The server does not take this kind of request: 400 or 501."""


class AccessDenied(StorageError):
    """The credential is unknown or lacks the permission. `code` is the server's error code if it is one of the two that
    distinguish a wrong key from a missing permission."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class InvalidSubmission(MurmurError):
    """A peer's submission breaks a rule of the protocol. `reason` is published to the peer."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class InvalidMessage(MurmurError):
    """Bytes that should be a canonical message (murmur/protocol/messages.py) are not."""


class Spoilt(MurmurError):
    """A fine-tuning would give nothing of use: too many bad rows, a loss that is not finite. Exit status 1."""


class OutOfSync(MurmurError):
    """Our state's digest is not that of the agreed selection; catch-up has to repair it."""


class CheckpointCorrupt(MurmurError):
    """Stored state does not match its digest. Continuing would train a different model from all other nodes'."""
