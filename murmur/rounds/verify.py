"""Verification: a validator repeats the inner steps of drawn miners, while it waits for the next round's commitments
(docs/protocol.md section 9; gauntlet/verification.py).

No deadline waits for it: what is not finished by then goes on in the next round. So all steps that a miner declares are
repeated, and a slow validator looks at fewer miners. Of the rounds drawn meanwhile one is next, each as likely: nobody
knows a round at which none will look. A kill loses what was not folded yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loguru import logger
from torch import Tensor

from gauntlet.book import ScoreBook
from gauntlet.checks import Checked
from gauntlet.repetition import MOST_ROUNDS, SPARE_STEPS, Repetition
from gauntlet.selection import Ranking
from gauntlet.verification import compare, draw
from murmur.data.shards import Shards
from murmur.node.node import Node
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.events import round_seconds
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.assignment import Draw, assigned
from murmur.protocol.errors import ChainError, ConfigError, StorageError
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId, hotkey
from murmur.training.inner import Stopped
from murmur.training.loader import sequences
from murmur.training.recorder import TraceOf
from sparseloco import trace
from sparseloco.trace import Trace

PATIENCE_ROUNDS = 3
"""Rounds on end in which no step that was drawn was repeated, until that is a trouble."""


@dataclass(frozen=True, slots=True)
class _Open:
    """Steps to repeat: of `round`, which began after so many non-void `rounds`. `done`: those that are made."""

    round: int
    rounds: int
    peer: PeerId
    shown: Trace
    page_hash: Digest
    done: int = 0


class Verifier:
    """One validator's repetitions. One thread calls its methods."""

    def __init__(self, node: Node, shards: Shards) -> None:
        self.node, self.shards = node, shards
        self._drawn: list[_Open] = []
        """In the round before."""
        self._coin: Draw | None = None
        """From the same block."""
        self._waiting: list[_Open] = []
        """Of an earlier round: what is next."""
        self._paused: _Open | None = None
        self._busy_rounds = 0
        """Rounds drawn since the last repetition began."""
        self._found: dict[PeerId, Repetition] = {}
        self._step_seconds = 0.0
        """How long a step of ours took."""
        self._in_vain = 0
        """Rounds on end in which no step that was drawn was repeated."""
        self._advanced = False
        """Whether a step was repeated in this round."""
        self._why = ""
        """Why a repetition was given up last."""
        self.drawn, self.verified = 0, 0
        """Of how many miners steps were to be repeated in this round, and of how many they were."""

    def draw(self, round: int, checked: Checked, ranking: Ranking, book: ScoreBook) -> None:
        """Draw whose steps of the round are repeated, by our own order. book: after the round."""
        node, spec = self.node, self.node.run.spec_at(round)
        self._drawn = []
        if not spec.trace.places:
            return
        # Later than the commit deadline: nobody knows the draw while work can still be changed.
        block_hash = node.ports.chain.header(node.clock.sample_block(round)).hash
        page_hash = node.ports.chain.header(node.clock.page_block(round)).hash
        drawn = draw(node.run.id, block_hash, round, node.me, ranking, checked.twins, book, spec.gauntlet)
        self._coin = Draw("next", node.run.id, block_hash, round, node.me)
        rounds = node.state.replica.outer.rounds
        self._drawn = [
            _Open(round, rounds, peer, trace.parse(checked.passed[peer].trace, spec.trace), page_hash) for peer in drawn
        ]

    def work(self, round: int) -> None:
        """Go on with what was stopped, then repeat what was drawn in the round before, until `round`'s commitments have
        to be read."""
        self._choose()
        tasks = [*filter(None, [self._paused]), *self._waiting]
        self.drawn, self.verified, self._advanced = len(tasks), 0, False
        if not tasks:
            return
        clock = self.node.clock
        until = self.node.time.now() + self.node.seconds_until(clock.commit_deadline(round))
        with self.node.following(clock.commit_deadline(round)) as late:

            def stopped() -> bool:
                return late() or self.node.time.now() > until - SPARE_STEPS * self._step_seconds

            for one in tasks:
                if self._paused not in (None, one) or stopped():
                    break  # there was no time for more than the one before
                if one is not self._paused:
                    self._waiting, self._busy_rounds = [], 0
                try:
                    self._verify(one, stopped, last=round - one.round >= MOST_ROUNDS)
                except (ChainError, ConfigError, StorageError, ValueError) as fault:
                    # Text or theta that is not here, or a device that is too small to train: a validator judges on.
                    self._give_up(one, str(fault))
        self._keep()
        self.verified = len(self._found)
        self._in_vain = 0 if self._advanced else self._in_vain + 1
        if self._advanced:
            self.node.troubles.mended(round, About.VERIFICATION)
        elif self._in_vain >= PATIENCE_ROUNDS:
            self.node.troubles.tell(round, Trouble("verifies_nobody", self._why))

    def _choose(self) -> None:
        """Say what is next: what was drawn in the round before, or something older if that has to wait."""
        drawn, self._drawn = self._drawn, []
        if self._paused is None and not self._waiting:
            self._waiting = drawn
        elif drawn and self._coin is not None:
            self._busy_rounds += 1
            if self._coin.below(self._busy_rounds) == 0:
                self._waiting = drawn

    def _keep(self) -> None:
        """Keep the theta of what has to wait."""
        if not self._waiting:
            return
        try:
            self.node.state.replica.keep_theta(self._waiting[0].rounds)
        except ValueError as fault:
            for one in self._waiting:
                self._give_up(one, str(fault))
            self._waiting = []

    def take(self) -> Mapping[PeerId, Repetition]:
        """Return what was found since this was called last."""
        found, self._found = self._found, {}
        return found

    def give_back(self, found: Mapping[PeerId, Repetition]) -> None:
        """Keep what was taken for a round that was not folded."""
        self._found = {**found, **self._found}

    def _verify(self, one: _Open, stopped: Stopped, *, last: bool) -> None:
        """Repeat the steps, as far as there is time. last: for the last time."""
        spec = self.node.run.spec_at(one.round)
        with self.node.state.timeline.begin("verify") as watch:
            found = self._repeat(one, spec, stopped)
            if found is not None and found.failed:
                again = self._second_look(one, spec, stopped)
                found = again if again is not None and again.passed else replace(found, confirmed=again is not None)
        if found is None and last:
            self._give_up(one, f"they take more than {MOST_ROUNDS} rounds here")
        if found is None:
            return
        self._paused = None
        before = self._found.get(one.peer)
        if before is None or not before.failed:  # two of a hotkey in one wait: a failure stays
            self._found[one.peer] = found
        logger.log(
            "WARNING" if found.failed else "DEBUG",
            "round {round}: {hotkey} declared {declared} of {steps} steps; {verdict}",
            round=one.round,
            hotkey=hotkey(one.peer),
            declared=found.declared,
            steps=found.steps,
            verdict=_verdict(found),
        )
        self.node.state.events.emit(
            "verified",
            one.round,
            peer=hotkey(one.peer),
            passed=found.passed,
            declared=found.declared,
            confirmed=found.confirmed,
            seconds={"verify": round_seconds(watch.seconds)},
        )

    def _repeat(self, one: _Open, spec: RunSpec, stopped: Stopped, *, split: bool = False) -> Repetition | None:
        """Return what the repeated steps show; None if they were stopped, to go on later."""
        steps = one.shown.steps
        if not steps:
            self._advanced = True
            return Repetition(one.round, spec.inner.steps, 0, (), ())
        replica, time, began = self.node.state.replica, self.node.time, self.node.time.now()

        def on_step(step: int, loss: float) -> None:
            self._step_seconds, self._advanced = (time.now() - began) / (step + 1 - one.done), True

        own = replica.repeat(
            self._text(one, spec, steps),
            inner=spec.inner.model_copy(update={"steps": steps}),
            rounds=one.rounds,
            first_step=one.rounds * spec.inner.steps,
            trace_of=TraceOf(self.node.run.id, one.page_hash, one.peer, spec.trace.places),
            on_step=on_step,
            stopped=stopped,
            done=one.done,
            split=split,
        )
        if own is None:
            self._paused = replace(one, done=replica.repeated)
            return None
        return compare(one.round, spec.inner.steps, one.shown, own)

    def _second_look(self, one: _Open, spec: RunSpec, stopped: Stopped) -> Repetition | None:
        """Return what another execution shows; None if there is no time for it, or theta is gone."""
        try:
            again = None if stopped() else self._repeat(replace(one, done=0), spec, stopped, split=True)
        except (ChainError, ConfigError, StorageError, ValueError):
            return None  # what the first look found stands, unconfirmed
        if again is None:
            self.node.state.replica.forget_repeated()
        return again

    def _text(self, one: _Open, spec: RunSpec, steps: int) -> Tensor:
        pages = assigned(
            self.node.run.id,
            one.page_hash,
            one.peer,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=spec.inner.first_page,
        )
        return sequences(self.shards.train, pages, spec.model.context)[: steps * spec.inner.sequences]

    def _give_up(self, one: _Open, why: str) -> None:
        self._why = why
        if self._paused is not None and self._paused.peer == one.peer and self._paused.round == one.round:
            self._paused = None
            self.node.state.replica.forget_repeated()
        told = "round {round}: the steps of {hotkey} are not verified: {why}"
        logger.info(told, round=one.round, hotkey=hotkey(one.peer), why=why)
        self.node.state.events.emit("unverified", one.round, peer=hotkey(one.peer), why=why)


def _verdict(found: Repetition) -> str:
    if found.passed:
        return "repeated here they are as shown"
    if not found.declared:
        return "there is nothing to repeat"
    return "repeated here they are not what it shows" + (
        "" if found.confirmed else "; there was no time for a second look"
    )
