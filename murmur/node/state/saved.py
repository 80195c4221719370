"""The state that a node must not lose: as a value, and as the row that the store keeps
(murmur/node/state/store.py)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from gauntlet.agreement import Tip
from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.types import Digest, PeerId, Uid
from sparseloco.outer import Aggregate

ADVICE = "the next start sets it aside and catches up"


@dataclass(frozen=True, slots=True)
class SealedRound:
    """A submission that was sealed: `object` is the file with envelope and ciphertext, `key` opens it. `steps`: the
    inner steps in it, done in `seconds` at the mean `loss` (None: not finite). `returned`: its round is over without
    it, the error feedback has it again."""

    round: int
    object: Digest
    key: bytes = field(repr=False)
    steps: int = 0
    seconds: float = 0.0
    returned: bool = False
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class SentWeights:
    """The weights that a validator set for `round`, or committed to, in block `set_in`: share by uid."""

    round: int
    set_in: int
    shares: Mapping[Uid, float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """theta and the outer state on the disk, as they stood at the start of `round`. link: to the last selection
    before it. state: the checkpoint (murmur/training/checkpoint.py)."""

    round: int
    link: Digest
    state: Digest


@dataclass(frozen=True, slots=True)
class Payload:
    """A submission that was applied. envelope: the digest that pins its sealed object, and its file's name. key: what
    opens it, None where what was pinned is no valid submission and counts with s = 0."""

    peer: PeerId
    envelope: Digest
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Step:
    """The outer step of a round, as it was made. theta: digest of the state before it. link: to the agreed selection.
    payloads: the contributors', in PeerId order."""

    round: int
    theta: Digest
    link: Digest
    alpha: float
    aggregate: Aggregate
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Consensus:
    """The source of theta and the outer state: a snapshot, and every outer step since, the oldest first. Void rounds
    change nothing and leave nothing here."""

    snapshot: Snapshot
    log: tuple[Step, ...] = ()

    @property
    def links(self) -> tuple[Digest, ...]:
        """To the last agreed selection of every state that can be made again: the snapshot, and after each step."""
        return self.snapshot.link, *(step.link for step in self.log)

    @property
    def link(self) -> Digest:
        """To the last agreed selection of the state that follows."""
        return self.links[-1]

    def since(self, snapshot: Snapshot) -> "Consensus":
        """The same state, from a later snapshot of it."""
        return Consensus(snapshot, tuple(step for step in self.log if step.round >= snapshot.round))


@dataclass(frozen=True, slots=True)
class Saved:
    """Everything that one node must not lose.

    round: the state stands at the start of this round. consensus: what it follows from, and theta: its digest. link:
    what the next selection must name as previous. sealed: the last sealed submission. book: file with the ScoreBook
    (validators). scored: last round folded into the book. unread: weights that were sent and not yet read back, the
    oldest first. tip: where the run stands, by what we read last. vain_from: the round since which nobody gives us what
    follows on what we hold, None where we do not hold anything that the run went through, or stand where it stands.
    """

    round: int
    consensus: Consensus
    theta: Digest
    link: Digest
    sealed: SealedRound | None = None
    book: Digest | None = None
    scored: int = -1
    unread: tuple[SentWeights, ...] = ()
    tip: Tip | None = None
    vain_from: int | None = None

    @property
    def at_tip(self) -> bool:
        """Whether the state that we hold is the run's at the start of `round`."""
        tip = self.tip
        return tip is not None and (tip.round, tip.link) == (self.round, self.link) and tip.theta in (None, self.theta)


def encode(saved: Saved) -> str:
    """The row's value: JSON behind its checksum."""

    def text(digest: Digest | None) -> str | None:
        return digest.hex() if digest is not None else None

    snapshot = saved.consensus.snapshot
    row = {
        "round": saved.round,
        "snapshot": [snapshot.round, text(snapshot.link), text(snapshot.state)],
        "log": [_encode_step(step) for step in saved.consensus.log],
        "theta": text(saved.theta),
        "link": text(saved.link),
        "sealed": _encode_sealed(saved.sealed) if saved.sealed else None,
        "book": text(saved.book),
        "scored": saved.scored,
        "unread": [[sent.round, sent.set_in, list(sent.shares.items())] for sent in saved.unread],
        "vain_from": saved.vain_from,
        "tip": [saved.tip.round, text(saved.tip.link), text(saved.tip.theta)] if saved.tip else None,
    }
    value = json.dumps(row)
    # SQLite has no checksums of its own: a changed digit would be believed.
    return f"{sha256(value.encode()).hexdigest()} {value}"


def _encode_sealed(sealed: SealedRound) -> list[object]:
    facts = sealed.steps, sealed.seconds, sealed.returned, sealed.loss
    return [sealed.round, sealed.object.hex(), sealed.key.hex(), *facts]


def _decode_sealed(row: list[Any]) -> SealedRound:
    round, object, key, *rest = row
    return SealedRound(round, Digest(bytes.fromhex(object)), bytes.fromhex(key), *rest)


def _encode_step(step: Step) -> list[object]:
    payloads = [[p.peer.hex(), p.envelope.hex(), p.key.hex() if p.key is not None else None] for p in step.payloads]
    return [step.round, step.theta.hex(), step.link.hex(), step.alpha, step.aggregate, payloads]


def _decode_step(row: list[Any]) -> Step:
    round, theta, link, alpha, aggregate, payloads = row
    return Step(
        round,
        Digest(bytes.fromhex(theta)),
        Digest(bytes.fromhex(link)),
        alpha,
        aggregate,
        tuple(
            Payload(
                PeerId(bytes.fromhex(peer)),
                Digest(bytes.fromhex(envelope)),
                bytes.fromhex(key) if key is not None else None,
            )
            for peer, envelope, key in payloads
        ),
    )


def decode(stored: bytes) -> Saved:
    """Inverse of `encode`. Raises CheckpointCorrupt."""

    def digest(text: str | None) -> Digest | None:
        return Digest(bytes.fromhex(text)) if text is not None else None

    try:
        checksum, _, value = stored.partition(b" ")
        if checksum.decode() != sha256(value).hexdigest():
            raise ValueError("it is not what was written")
        row = json.loads(value)
        sealed, tip = row["sealed"], row.get("tip")  # a release before this one did not say
        round, link, state = row["snapshot"]
        saved = Saved(
            row["round"],
            Consensus(
                Snapshot(round, Digest(bytes.fromhex(link)), Digest(bytes.fromhex(state))),
                tuple(_decode_step(step) for step in row["log"]),
            ),
            Digest(bytes.fromhex(row["theta"])),
            Digest(bytes.fromhex(row["link"])),
            None,
            digest(row["book"]),
            row["scored"],
            tuple(SentWeights(paid, set_in, dict(shares)) for paid, set_in, shares in row["unread"]),
            Tip(tip[0], Digest(bytes.fromhex(tip[1])), digest(tip[2])) if tip else None,
            row.get("vain_from"),
        )
        if sealed:
            saved = replace(saved, sealed=_decode_sealed(sealed))
        return saved
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise CheckpointCorrupt(f"the saved state row is damaged ({fault}): {ADVICE}") from None
