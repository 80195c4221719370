"""Track which members live, by our own clock: members whose beat keeps changing, and those worth waiting for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from murmur.protocol.cluster import Beat, ClusterTable
from murmur.protocol.types import PeerId

GONE_SILENCES = 180.0
"""After this many times `silent_seconds` (an hour) of rounds without it a member is gone for good, and its beat
deleted. Rounds tell it also to who has just started: where members start often, nobody looks for an hour."""
STUCK_SILENCES = 15.0
"""After this many times `silent_seconds` (5 minutes) at one step of one phase the others stop waiting for a member,
though it beats: its GPU hangs, or its link is blocked."""
LONGEST_LOOK_BEATS = 2.0
"""The time between two looks counts as silence for at most this many beats: if the store did not answer, or we slept,
nothing shows which member was silent."""


@dataclass
class _Seen:
    beat: Beat
    silent: float = 0.0
    """`silent`: seconds since the beat changed; `still`: seconds since its place changed. Both count only looks that
    the store answered."""
    still: float = 0.0
    changed: bool = False
    """Whether its beat has changed since we look: before that it may be one that a dead member has left."""

    @property
    def place(self) -> tuple[str, int, int, str]:
        return self.beat.process, self.beat.round, self.beat.step, self.beat.phase


class Presence:
    """One member's observations of all members' beats."""

    def __init__(self, rules: ClusterTable) -> None:
        self.rules = rules
        self._seen: dict[PeerId, _Seen] = {}
        self._looked: float | None = None

    def look(self, beats: Mapping[PeerId, Beat], now: float, unread: Collection[PeerId] = ()) -> None:
        """Take in all members' beats, as the store has just shown them. now: seconds of a monotonic clock. unread: the
        members whose beat it did not bring. That is hardly their silence: it counts as little as standing still."""
        longest = LONGEST_LOOK_BEATS * self.rules.beat_seconds
        passed = 0.0 if self._looked is None else min(now - self._looked, longest)
        self._looked = now
        for member, beat in beats.items():
            seen = self._seen.get(member)
            if seen is None or (seen.beat.process, seen.beat.count) != (beat.process, beat.count):
                new = _Seen(beat, changed=seen is not None)
                if seen is not None and seen.place == new.place:
                    new.still = seen.still + passed
                self._seen[member] = new
            else:
                seen.silent += passed
        for member in self._seen.keys() - beats.keys():
            self._seen[member].silent += passed / (STUCK_SILENCES if member in unread else 1.0)

    def can_claim(self) -> set[PeerId]:
        """Return the members that live and may still claim: not those that leave, idle, or are still joining."""
        silence = self.rules.silent_seconds
        return {
            member
            for member, seen in self._seen.items()
            if seen.silent < silence
            and seen.still < STUCK_SILENCES * silence
            and not seen.beat.leaving
            and seen.beat.phase not in ("join", "idle")
        }

    def confirmed_alive(self) -> set[PeerId]:
        """Return the living members whose beat has changed since we look."""
        return {member for member in self.can_claim() if self._seen[member].changed}

    def running(self) -> set[PeerId]:
        """Return the members that run, in any phase."""
        silence = self.rules.silent_seconds
        return {m for m, seen in self._seen.items() if seen.silent < silence and not seen.beat.leaving}

    def passed(self, round: int, but: PeerId) -> float:
        """Return the seconds since most of the other living members began the round's inner steps; 0 before. Of three
        or more, one that begins early makes nobody late: a round does not end before most have claimed."""
        beats = [self._seen[member].beat for member in self.can_claim() - {but}]
        # At our first look, all members that ever died seem to live.
        near = [beat for beat in beats if round - 1 <= beat.round <= round]
        begun = [beat for beat in near if beat.round == round and beat.phase in ("train", "send", "wait")]
        passed = sorted([beat.passed for beat in begun] + [0.0] * (len(near) - len(begun)))
        return passed[(len(passed) - 1) // 2] if passed else 0.0

    def furthest(self) -> int:
        """Return the highest round of the members that run: that member holds the record of every round before."""
        return max((self._seen[member].beat.round for member in self.running()), default=0)

    def forget_departed(self, before: float) -> set[PeerId]:
        """Forget the members that are not expected back, and return them, each only once: silent ones whose last beat
        is of a round before this one."""
        silence = self.rules.silent_seconds
        found = {m for m, seen in self._seen.items() if seen.silent >= silence and seen.beat.round < before}
        for member in found:
            del self._seen[member]
        return found
