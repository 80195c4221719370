"""Which members live, by our own clock: those whose beat keeps changing. Frozen values; a look makes a new one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True)
class Seen:
    """One member's last beat. silent: seconds since the beat changed; still: seconds since its place changed. Both
    count only looks that the store answered. changed: whether the beat has changed since we look: before that it may be
    one that a dead member has left."""

    beat: Beat
    silent: float = 0.0
    still: float = 0.0
    changed: bool = False

    def after(self, beat: Beat, passed: float) -> "Seen":
        """Return what is seen of the member when it shows this beat, so many seconds later."""
        if (self.beat.process, self.beat.count) == (beat.process, beat.count):
            return replace(self, silent=self.silent + passed)
        still = self.still + passed if _place(self.beat) == _place(beat) else 0.0
        return Seen(beat, still=still, changed=True)


def _place(beat: Beat) -> tuple[str, int, int, str]:
    return beat.process, beat.round, beat.step, beat.phase


@dataclass(frozen=True, slots=True)
class Presence:
    """All members' beats, as one member has seen them until now."""

    rules: ClusterTable
    seen: Mapping[PeerId, Seen] = field(default_factory=dict)
    looked: float | None = None

    def look(self, beats: Mapping[PeerId, Beat], now: float, unread: Collection[PeerId] = ()) -> "Presence":
        """Return the presence after all members' beats, as the store has just shown them. now: seconds of a monotonic
        clock. unread: the members whose beat it did not bring. That is hardly their silence: it counts as little as
        standing still. A silent member whose beat is deleted is forgotten."""
        longest = LONGEST_LOOK_BEATS * self.rules.beat_seconds
        passed = 0.0 if self.looked is None else min(now - self.looked, longest)
        found = {
            member: self.seen[member].after(beat, passed) if member in self.seen else Seen(beat)
            for member, beat in sorted(beats.items())
        }
        for member, seen in self.seen.items():
            if member in beats or (seen.silent >= self.rules.silent_seconds and member not in unread):
                continue
            silent = seen.silent + passed / (STUCK_SILENCES if member in unread else 1.0)
            found[member] = replace(seen, silent=silent)
        return Presence(self.rules, found, now)

    def can_claim(self) -> frozenset[PeerId]:
        """Return the members that live and may still claim: not those that leave, idle, or are still joining."""
        silence = self.rules.silent_seconds
        return frozenset(
            member
            for member, seen in self.seen.items()
            if seen.silent < silence
            and seen.still < STUCK_SILENCES * silence
            and not seen.beat.leaving
            and seen.beat.phase in ("train", "send", "wait", "apply")
        )

    def confirmed_alive(self) -> frozenset[PeerId]:
        """Return the living members whose beat has changed since we look."""
        return frozenset(member for member in self.can_claim() if self.seen[member].changed)

    def running(self) -> frozenset[PeerId]:
        """Return the members that run, in any phase."""
        silence = self.rules.silent_seconds
        return frozenset(m for m, seen in self.seen.items() if seen.silent < silence and not seen.beat.leaving)

    def passed(self, round: int, but: PeerId) -> float:
        """Return the seconds since most of the other living members began the round's inner steps; 0 before. Of three
        or more, one that begins early makes nobody late: a round does not end before most have claimed."""
        beats = [self.seen[member].beat for member in sorted(self.can_claim() - {but})]
        # At our first look, all members that ever died seem to live.
        near = [beat for beat in beats if round - 1 <= beat.round <= round]
        begun = [beat for beat in near if beat.round == round and beat.phase in ("train", "send", "wait")]
        passed = sorted([beat.passed for beat in begun] + [0.0] * (len(near) - len(begun)))
        return passed[(len(passed) - 1) // 2] if passed else 0.0

    def furthest(self) -> int:
        """Return the highest round of the members that run: that member holds the record of every round before."""
        return max((self.seen[member].beat.round for member in self.running()), default=0)

    def departed(self, before: float) -> list[PeerId]:
        """Return the members that are not expected back: silent ones whose last beat is of a round before this one."""
        silence = self.rules.silent_seconds
        return sorted(m for m, seen in self.seen.items() if seen.silent >= silence and seen.beat.round < before)
