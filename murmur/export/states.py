"""A run's theta at the start of any round, rebuilt from the chain and public objects like a joiner does
(murmur/node/sync/catchup.py), but without a node: no state is kept, theta is in files, and memory holds one round's
payloads.

The chain is authoritative: it shows where the run is, every agreed selection names the theta and the link before it,
and the rebuilt state must hash to the named digest.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Protocol

from torch import Tensor

from gauntlet.agreement import Tip
from murmur.node.chain.follower import Follower
from murmur.node.config.ports import Ports
from murmur.node.fetch.selected import gather_pinned
from murmur.node.fetch.sources import Sources
from murmur.node.state.saved import Snapshot
from murmur.node.sync.amendments import adopted
from murmur.node.sync.catchup import ASK_SECONDS, DOWNLOADS_TRIED, at_commit, holders_of_genesis
from murmur.node.sync.checkpoints import Start, counted_stakes, fetcher, published_starts, shown_by_all
from murmur.node.sync.selection_chain import SelectionChain
from murmur.node.telemetry.events import Timeline
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, InvalidMessage, OutOfSync, StorageError
from murmur.protocol.layout import Layout
from murmur.protocol.messages import first_link
from murmur.protocol.run import Run
from murmur.protocol.spec import OuterSpec, RunSpec
from murmur.protocol.types import Digest, PeerId, Selection, StateRef
from murmur.training import checkpoint
from murmur.training.checkpoint import parse_outer
from murmur.training.host import Area, model_bytes, model_tensors
from sparseloco import ops
from sparseloco.digest import theta_digest
from sparseloco.outer import OuterState
from sparseloco.update import Update


@dataclass(frozen=True, slots=True)
class Named:
    """The state at the start of `round`: a link, and the theta digest that votes on chain or the next selection name.
    The digest is None where nothing names it yet, and for theta_0 of a run that has not begun."""

    round: int
    link: Digest
    theta: Digest | None

    @property
    def state_ref(self) -> StateRef | None:
        return StateRef(self.theta, self.link) if self.theta is not None else None


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A state whose digest was computed: theta in mapped files, read only."""

    theta: Mapping[str, Tensor]
    outer: OuterState
    digest: Digest
    link: Digest


class AnyStates(Protocol):
    """The states of a run on a chain (`States`) or of a cluster (murmur/export/cluster_states.py)."""

    @property
    def id(self) -> Digest: ...

    @property
    def spec(self) -> RunSpec | ClusterSpec: ...

    @property
    def named_by(self) -> str: ...

    def at(self, round: int) -> Named: ...

    def rebuild(self, named: Named, folder: Path) -> Rebuilt: ...


class States:
    """The states of a run, as the chain names them now. `tell` gets progress lines."""

    named_by = "validators name it on chain"

    def __init__(self, run: Run, ports: Ports, tell: Callable[[str], None]) -> None:
        self._follower = Follower(run, ports, Timeline(ports.time))
        self._tell = tell
        self._tip: Tip = self._follower.agreement.tip(run)
        self.newest = self._tip.round
        """The last round at whose start the state is decided."""

    @property
    def run(self) -> Run:
        return self._follower.run

    @property
    def id(self) -> Digest:
        return self.run.id

    @property
    def spec(self) -> RunSpec:
        return self.run.first

    def at(self, round: int) -> Named:
        """Return the state at the start of `round`. Raises ConfigError for a round that is not decided, StorageError
        where the selections in between cannot be fetched, ChainError."""
        if not 0 <= round <= self.newest:
            raise ConfigError(
                f"round {round}: run {self.run.first.name} has states from round 0 to {self.newest} by now"
            )
        found = Named(round, self._tip.link, self._tip.theta)
        for link, steps in self._records(self._tip.link, self.newest).links():
            if steps:
                if steps[0].round < round:
                    return found
                found = Named(round, link, steps[0].theta)
        if found.link != first_link(self.run.id):
            raise StorageError(
                f"no validator has the agreed selections between the newest, of round {self.newest}, and round "
                f"{round}: try again later, or export a newer round"
            )
        return found

    def _records(self, link: Digest, below: int) -> SelectionChain:
        follower = self._follower
        known = follower.agreement.selections
        return SelectionChain(self.run.id, follower.sources(), link, below, follower.time, known=known)

    # --- rebuilding ------------------------------------------------------------------------------------------

    def rebuild(self, named: Named, folder: Path) -> Rebuilt:
        """Rebuild the state, with its files in `folder`, which needs room for three times theta. Raises StorageError
        when no source has its parts, ConfigError, ChainError, OSError."""
        sources = self._follower.sources()
        faults: list[str] = []
        for start, steps in self._starts(named, sources):
            try:
                return self._replay(named, start, steps, sources, folder)
            except (StorageError, OutOfSync, InvalidMessage, CheckpointCorrupt) as fault:
                faults.append(f"from {start.origin}: {fault}")
                self._tell(f"not {faults[-1]}")
        why = "; ".join(faults) or "no checkpoint that leads there is published"
        raise StorageError(
            f"the state at the start of round {named.round} cannot be rebuilt ({why}). Payloads are kept for "
            "some rounds only: try the newest round"
        )

    def _starts(self, named: Named, sources: Sources) -> Iterator[tuple[Start, list[Selection]]]:
        """Yield states from which agreed selections lead there, with those selections, the oldest first. Published
        checkpoints come first: those that most of the stake names, then the nearest. theta_0 comes last."""
        follower, first = self._follower, first_link(self.run.id)
        stakes = counted_stakes(follower, self.newest, at_commit(follower, self.newest))
        records = self._records(named.link, named.round)
        downloads = 0
        for offers in published_starts(follower, stakes, sources, shown_by_all(follower, sources, ASK_SECONDS)):
            sought = {offer.link for offer in offers}
            for link, steps in records.links():
                if not sought:
                    break
                for offer in offers:
                    if offer.link == link and downloads < DOWNLOADS_TRIED:
                        downloads += 1
                        yield offer.at(records.round_of(steps)), steps
                sought.discard(link)
        for link, steps in records.links():
            if link == first:
                yield self._genesis(sources), steps

    def _genesis(self, sources: Sources) -> Start:
        """Return theta_0, from any holder: its digest is in the spec."""
        digest, link = self.run.first.genesis_digest, first_link(self.run.id)
        holders = (sources.bucket_of(holder) for holder in holders_of_genesis(self._follower, digest, sources))
        buckets = [opener for opener in holders if opener is not None]
        return Start(0, link, Snapshot(0, link, digest), "theta_0", fetcher(self._follower, buckets))

    def _replay(
        self, named: Named, start: Start, steps: Sequence[Selection], sources: Sources, folder: Path
    ) -> Rebuilt:
        """Take the outer steps from `start` on. Raises OutOfSync where the result differs from the chain's digest."""
        follower, layout = self._follower, self.run.layout
        heads = [(step.round, step.head) for step in steps]
        run = adopted(follower.run, heads, follower.ports, {}, follower.time)
        todo = [_Step(step.round, run.spec_at(step.round), step.contributing) for step in steps]
        rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # Payloads first, since the oldest are deleted first: without them the model need not be fetched.
        opened = self._gather(todo[0], sources, folder) if todo else []
        self._tell(f"fetching {start.origin}, {4 * layout.num_parameters / 1e9:.1f} GB")
        assert start.snapshot is not None
        saved = checkpoint.load(
            folder / "checkpoint", start.snapshot.state, run.first.model.shapes(), fetch=start.fetch
        )
        state = _State(saved.tensors, parse_outer(saved.facts, layout), layout, folder)
        state.require(steps[0].theta if steps else named.theta)
        for number, step in enumerate(todo):
            self._tell(f"applying round {step.round}, {number + 1} of {len(todo)}")
            state.apply(opened if number == 0 else self._gather(step, sources, folder), step.spec.outer)
        state.require(named.theta)
        return state.rebuilt(named.link)

    def _gather(self, step: "_Step", sources: Sources, folder: Path) -> list[Update | None]:
        follower, payloads = self._follower, folder / "payloads"
        opened = gather_pinned(
            step.spec,
            self.run.id,
            step.round,
            step.pairs,
            sources,
            follower.ports.verify,
            follower.transfer_seconds,
            payloads,
            follower.time,
        )
        rmtree(payloads, ignore_errors=True)
        return [each.update for each in opened]


@dataclass(frozen=True, slots=True)
class _Step:
    round: int
    spec: RunSpec
    pairs: Sequence[tuple[PeerId, Digest]]


class _State:
    """theta during a replay: in a checkpoint's files at first, then in two files alternately."""

    def __init__(self, theta: Mapping[str, Tensor], outer: OuterState, layout: Layout, folder: Path) -> None:
        self._theta, self._outer, self._layout, self._folder = theta, outer, layout, folder
        self._areas: list[dict[str, Tensor]] = []
        self._applied = 0

    def apply(self, updates: Sequence[Update | None], outer: OuterSpec) -> None:
        if len(self._areas) < 2:
            self._areas.append(self._area(len(self._areas)))
        out = self._areas[self._applied % 2]
        _, self._outer, _ = ops.outer_step(
            self._theta, updates, self._outer, alpha=outer.alpha, aggregate=outer.aggregate, out=out
        )
        self._theta = out
        self._applied += 1

    def require(self, expected: Digest | None) -> None:
        """Raise OutOfSync for another theta than the chain names."""
        if expected is not None and self._digest() != expected:
            raise OutOfSync("its theta differs from the one on chain")

    def rebuilt(self, link: Digest) -> Rebuilt:
        return Rebuilt(self._theta, self._outer, self._digest(), link)

    def _digest(self) -> Digest:
        return theta_digest(self._theta, self._layout, self._outer)

    def _area(self, number: int) -> dict[str, Tensor]:
        path, size = self._folder / f"theta-{number}", model_bytes(self._layout)
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk would kill a writer of the mapped file
        return model_tensors(Area(size, str(path)), self._layout)
