"""The inputs of a round's audit (gauntlet/audit.py): the round's public facts, and one validator's statements about it.
The caller has fetched everything."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gauntlet.agreement import Agreed, Log
from gauntlet.checks import CheckFunctions
from gauntlet.commitment import is_judged
from gauntlet.loss import Losses
from gauntlet.report import Report
from gauntlet.sketch import Sketch
from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Peer, PeerId, Uid
from sparseloco.outer import OuterState


@dataclass(frozen=True, slots=True)
class State:
    """Consequences of theta at the start of the round: the proof of a peer in sync, the slow averages, and losses as
    the validator evaluates them (None without the run's data)."""

    sync_proof: Callable[[PeerId], Digest]
    outer: OuterState
    losses: Losses | None


@dataclass(frozen=True)
class Facts:
    """A round's public facts, from the chain and the buckets.

    `log` as for gauntlet.agreement, up to the vote deadline; `at_reveal` as of the reveal deadline. `theta` and
    `previous`: at the round's start, as most stake names them. `payloads`: sealed objects that hash to their
    commitments, as far as they could be fetched. `height`: the final block as of which we look. `state`: None if theta
    could not be rebuilt; `stateless` says why.
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
    functions: CheckFunctions
    height: int
    state: State | None = None
    stateless: str = ""

    @property
    def spec(self) -> RunSpec:
        return self.run.spec_at(self.round)

    @property
    def commit_hash(self) -> Digest:
        """The hash of the commit deadline's block."""
        return self.log.commit_hash

    @property
    def judged(self) -> dict[PeerId, Peer]:
        """The peers that count as miners."""
        return {peer.id: peer for peer in self.log.commit if is_judged(peer, self.spec.owner_id)}


@dataclass(frozen=True, slots=True)
class ChainWeights:
    """A validator's weights on chain as of `block`, the first at which its new weights have to be in effect, and one
    block before."""

    block: int
    now: Mapping[Uid, int]
    before: Mapping[Uid, int]


@dataclass(frozen=True)
class ValidatorFacts:
    """One validator's statements, and the data to check them.

    `shown`: the table of hotkeys in the document. `earlier`: its report of the round after which its book before was
    made, None if unavailable. `skipped`: a later round before this one that it reported nevertheless. `sketches`: of
    the payloads that `Judge.compared` names and that could be fetched. `paid`: hotkeys as of `report.paid.block`; None
    if the chain's node does not have it. `row`: the weights on chain that were set in `report.paid.set_in`, or why they
    are unknown. `last`: its report of the round before, None if unavailable. `drawn`: by earlier round, whose steps
    of it the validator has drawn, as far as its report of that round is to be had. `stated`: hotkeys and rounds whose
    repeated steps its reports since have stated.
    """

    validator: PeerId
    report: Report
    shown: Mapping[str, Any]
    earlier: Report | None = None
    skipped: int | None = None
    sketches: tuple[Sketch, ...] = ()
    paid: Sequence[Peer] | None = None
    row: ChainWeights | str = ""
    last: Report | None = None
    drawn: Mapping[int, Collection[PeerId]] = field(default_factory=dict)
    stated: Collection[tuple[PeerId, int]] = ()
