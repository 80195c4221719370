"""What an audit of a round is given (gauntlet/audit.py): the round as everybody can see it, and what one validator
states of it. Whoever calls has fetched everything."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gauntlet.agreement import Agreed, Log
from gauntlet.checks import Doors
from gauntlet.commitment import is_judged
from gauntlet.loss import Losses
from gauntlet.report import Report
from gauntlet.sketch import Sketch
from protocol.run import Run
from protocol.spec import RunSpec
from protocol.types import Digest, Peer, PeerId, Uid
from sparseloco.outer import OuterState


@dataclass(frozen=True, slots=True)
class State:
    """What follows from theta at the start of the round: the proof that a peer in sync gives, the slow averages, and
    losses as the validator evaluates them (None without the run's data)."""

    sync_proof: Callable[[PeerId], Digest]
    outer: OuterState
    losses: Losses | None


@dataclass(frozen=True)
class Facts:
    """A round as the chain and the buckets show it to everybody.

    `log` as for gauntlet.agreement, up to X; `at_reveal` as of V. `theta` and `previous`: at the round's start, by most
    stake of the words. `payloads`: sealed objects that hash to what was committed to, of those that could be had.
    `height`: the final block from which we look. `state`: None when theta could not be rebuilt; `stateless` says why.
    """

    run: Run
    round: int
    page_hash: Digest
    sample_hash: Digest
    log: Log
    at_reveal: Sequence[Peer]
    theta: Digest
    previous: Digest
    decision: Agreed
    payloads: Mapping[PeerId, bytes]
    doors: Doors
    height: int
    state: State | None = None
    stateless: str = ""

    @property
    def spec(self) -> RunSpec:
        return self.run.spec_at(self.round)

    @property
    def commit_hash(self) -> Digest:
        """That of block D."""
        return self.log.commit_hash

    @property
    def judged(self) -> dict[PeerId, Peer]:
        """Who counts as a miner."""
        return {peer.id: peer for peer in self.log.commit if is_judged(peer, self.spec.owner_id)}


@dataclass(frozen=True, slots=True)
class Row:
    """A validator's weights on chain as of `block`, the first at which those that it set have to stand, and one block
    before."""

    block: int
    now: Mapping[Uid, int]
    before: Mapping[Uid, int]


@dataclass(frozen=True)
class Claim:
    """What one validator states, and what belongs to it.

    `shown`: the table of hotkeys as it stands in the document. `earlier`: its report of the round that its book before
    was made in, None when that is not to be had; `skipped`: a later round before this one that it reported all the
    same. `sketches`: by the round's sample, of those payloads of `Report.compared` that could be had; `measured`: of
    those of `Report.measured`, by its larger sample. `paid`: hotkeys as of
    `report.paid.block`; None when the chain's node does not have it. `row`: what came to stand on chain of the weights
    that were set in `report.paid.set_in`, or why that cannot be told.
    """

    validator: PeerId
    report: Report
    shown: Mapping[str, Any]
    earlier: Report | None = None
    skipped: int | None = None
    sketches: tuple[Sketch, ...] = ()
    measured: tuple[Sketch, ...] = ()
    paid: Sequence[Peer] | None = None
    row: Row | str = ""
    last: Report | None = None
