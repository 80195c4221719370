"""Verification: a validator repeats the inner steps of drawn miners, while it waits for the next round's commitments
(docs/protocol.md section 9; gauntlet/verification.py).

What is not finished by then is given up: no deadline waits for it. All steps that a miner declares are repeated, and a
round whose steps would not fit is not begun: a slow validator looks at few rounds, never at their beginnings alone. A
kill loses what was not folded yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loguru import logger
from torch import Tensor

from gauntlet.checks import Checked
from gauntlet.repetition import SPARE_STEPS, Repetition
from gauntlet.selection import Ranking
from gauntlet.verification import compare, draw
from murmur.data.shards import Shards
from murmur.node.node import Node
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.events import round_seconds
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.assignment import assigned
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId, hotkey
from murmur.training.inner import Stopped
from murmur.training.loader import sequences
from murmur.training.recorder import TraceOf
from sparseloco import trace
from sparseloco.trace import Trace

PATIENCE_ROUNDS = 3
"""Rounds on end in which nothing that was drawn was repeated, until that is a trouble."""
FORGETS = 0.9
"""What is kept of a step's measured time when there is none to measure it again: a slow moment is not for good."""


@dataclass(frozen=True, slots=True)
class _Open:
    """Steps to repeat: of `round`, which began after so many non-void `rounds`."""

    round: int
    rounds: int
    peer: PeerId
    shown: Trace
    page_hash: Digest


class Verifier:
    """One validator's repetitions. One thread calls its methods."""

    def __init__(self, node: Node, shards: Shards) -> None:
        self.node, self.shards = node, shards
        self._open: list[_Open] = []
        self._found: dict[PeerId, Repetition] = {}
        self._step_seconds = 0.0
        """How long a step of ours took."""
        self._in_vain = 0
        """Rounds on end in which nothing that was drawn was repeated."""
        self._why = ""
        """Why a repetition was given up last."""
        self.drawn, self.verified = 0, 0
        """Of how many miners steps were to be repeated in this round, and of how many they were."""

    def draw(self, round: int, checked: Checked, ranking: Ranking, repeated: Mapping[PeerId, int]) -> None:
        """Draw whose steps of the round are repeated: of contributors and reserve, in our own order. repeated: how
        often each was so far."""
        node, spec = self.node, self.node.run.spec_at(round)
        self._open = []
        if not spec.trace.places:
            return
        # Later than the commit deadline: nobody knows the draw while work can still be changed.
        block_hash = node.ports.chain.header(node.clock.sample_block(round)).hash
        page_hash = node.ports.chain.header(node.clock.page_block(round)).hash
        candidates = [*ranking.contributing, *ranking.reserve]
        drawn = draw(node.run.id, block_hash, round, node.me, candidates, repeated, spec.gauntlet.verifications)
        rounds = node.state.replica.outer.rounds
        self._open = [
            _Open(round, rounds, peer, trace.parse(checked.passed[peer].trace, spec.trace), page_hash) for peer in drawn
        ]

    def work(self, round: int) -> None:
        """Repeat what was drawn in the round before, until `round`'s commitments have to be read."""
        tasks, self._open = self._open, []
        self.drawn, self.verified = len(tasks), 0
        if not tasks:
            return
        clock = self.node.clock
        until = self.node.time.now() + self.node.seconds_until(clock.commit_deadline(round))
        with self.node.following(clock.commit_deadline(round)) as late:

            def stopped() -> bool:
                return late() or self.node.time.now() > until - SPARE_STEPS * self._step_seconds

            for one in tasks:
                if stopped() or not self._fits(one, until):
                    self._step_seconds *= FORGETS
                    self._tell_of_lost(one, "there is no time for it")
                    continue
                try:
                    self._verify(one, stopped)
                except (ConfigError, StorageError, ValueError) as fault:
                    # Text or theta that is not here, or a device that is too small to train: a validator judges on.
                    self._tell_of_lost(one, str(fault))
        self.verified = len(self._found)
        self._in_vain = 0 if self._found else self._in_vain + 1
        if self._found:
            self.node.troubles.mended(round, About.VERIFICATION)
        elif self._in_vain >= PATIENCE_ROUNDS:
            self.node.troubles.tell(round, Trouble("verifies_nobody", self._why))

    def take(self) -> Mapping[PeerId, Repetition]:
        """Return what was found since this was called last."""
        found, self._found = self._found, {}
        return found

    def give_back(self, found: Mapping[PeerId, Repetition]) -> None:
        """Keep what was taken for a round that was not folded."""
        self._found = {**found, **self._found}

    def _fits(self, one: _Open, until: float) -> bool:
        """Whether a whole round's steps would fit: else short prefixes alone would be looked at."""
        steps = self.node.run.spec_at(one.round).inner.steps
        return steps * self._step_seconds <= until - self.node.time.now()

    def _verify(self, one: _Open, stopped: Stopped) -> None:
        spec = self.node.run.spec_at(one.round)
        with self.node.state.timeline.begin("verify") as watch:
            found = self._repeat(one, spec, stopped, split=False)
            if found is not None and found.failed:
                again = self._repeat(one, spec, stopped, split=True)
                found = again if again is not None and again.passed else replace(found, confirmed=again is not None)
        if found is None:
            self._tell_of_lost(one, "there was no time for it")
            return
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

    def _repeat(self, one: _Open, spec: RunSpec, stopped: Stopped, *, split: bool) -> Repetition | None:
        """Return what the repeated steps show; None if they were stopped."""
        steps = one.shown.steps
        if not steps:
            return Repetition(one.round, spec.inner.steps, 0, (), ())
        time, began = self.node.time, self.node.time.now()

        def on_step(step: int, loss: float) -> None:
            if not split:  # a second look is slower: whoever forces it must not end verification by it
                self._step_seconds = (time.now() - began) / (step + 1)

        own = self.node.state.replica.repeat(
            self._text(one, spec, steps),
            inner=spec.inner.model_copy(update={"steps": steps}),
            rounds=one.rounds,
            first_step=one.rounds * spec.inner.steps,
            trace_of=TraceOf(self.node.run.id, one.page_hash, one.peer, spec.trace.places),
            on_step=on_step,
            stopped=stopped,
            split=split,
        )
        return None if own is None else compare(one.round, spec.inner.steps, one.shown, own)

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

    def _tell_of_lost(self, one: _Open, why: str) -> None:
        self._why = why
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
