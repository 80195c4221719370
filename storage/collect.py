"""Concurrent fetching of one object per peer from strangers' buckets, scheduled so that every peer gets a turn.

Half of all hotkeys may exist only to delay us: their servers stall, have no object or cannot be reached. So peers are
asked in turns, in the caller's order. A peer whose turn ends unfinished waits behind all that had none; among these the
faster come first. A thread that a server blocks is abandoned when the time is over (docs/protocol.md sections 4 and
10). May not interpret the bytes or decide on a peer's fault.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from murmur.protocol.errors import ConfigError
from murmur.protocol.ports import Task, Time
from murmur.protocol.types import PeerId
from storage.exchange import Data, FetchFault, Shelf, Wanted, fetch
from storage.places import share
from storage.realtime import REAL, seconds_until
from storage.s3 import RangedBucket

_LOOK_SECONDS = 0.5
"""Interval at which `seconds_left` is called: its answer may change with every block."""
_FIRST_SHARE = 0.25
"""Fraction of a peer's fair share of the time that its first turn gets, so that stallers cost the others no more."""
_SAMPLE_SHARE = 1 / 16
"""The same for a download that goes on where it ended: a short first turn loses nothing, and shows its pace."""
_PROMISED_SHARE = 8
"""One thread of so many is kept free for all the objects that were missing when last asked for."""
_LEAST_SHARE_SECONDS = 0.05
"""Shortest share. No server answers sooner, and without a minimum the shares of stallers would shrink for ever."""
_PAUSES = 40
"""Retries per window for an object that was missing, .."""
_PAUSE_SECONDS = 0.25, 5.0
""".. with a pause within these bounds (seconds), or longer to keep the total below .."""
_QUESTIONS_PER_SECOND = 100
""".. this rate, which limits our CPU use, and below .."""
_QUESTIONS_TO_ONE = 25
""".. this rate per endpoint, because any peer may point to any server."""


_NOT_ASKED = FetchFault("left_out", "there was no time left for it")
_NO_ANSWER = FetchFault("unavailable", "no answer in time")


@dataclass(slots=True, eq=False)
class _Turn:
    """A peer that still has to be asked. `rank`: its place in the caller's order."""

    item: Wanted
    rank: int
    fault: FetchFault = _NOT_ASKED
    due: float = 0.0
    """Earliest time of the next turn."""
    asked: int = 0
    """Requests that were answered, though not with the object."""
    turns: int = 0
    """Turns that used up their share and ended unfinished."""
    garbage: int = 0
    """Whole objects that it gave, and that were not the right ones. A large one is asked for twice."""
    pace: int = 0
    """Bytes a second that the last of these brought to the disk."""

    @property
    def place(self) -> tuple[bool, int, int, int, int]:
        """Sort key: no unfinished turn first, then the fastest (within a factor of four), then the caller's order.

        Turns alone do not decide: on a link that is just enough for the best, equal turns for garbage of the right size
        would leave each of them unfinished.
        """
        return self.turns > 0, -(self.pace.bit_length() // 2), 0 if self.pace else self.turns, self.asked, self.rank


class Collection:
    """Fetches one object per peer until all have arrived or the time is over. An answer counts if it arrives before the
    end.

    `wanted`: in the order of the first requests. `seconds_left`: the time that remains, called twice a second; 0 ends
    the collection. `lasting`: objects that are missing or invalid are requested again at a gentle interval; otherwise
    only stallers get another turn. A pointer that may not be followed is never tried twice.

    Peers that point to one place are asked as one, and each gets what is its own (storage/places.py).

    At most `max_threads` requests run at once. While the open peers do not outnumber the threads, each gets all the
    time left. Otherwise each gets a share, and with `lasting` or `room` the share doubles with every unfinished turn. A
    thread is then kept free for each peer that is due and had no unfinished turn, at most half of all, and an eighth
    for those whose object was missing.

    `cache`: a folder where accepted objects are stored and found again (storage/exchange.py, Shelf). An unfinished
    large object stays there and is gone on with; its peer's place is behind all that had no unfinished turn. `room`:
    bytes of new files allowed there. Objects that do not fit, from the end of the order, become LEFT OUT, and none is
    then held in memory.
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        seconds_left: Callable[[], float],
        max_threads: int,
        lasting: bool = False,
        cache: Path | None = None,
        room: int | None = None,
        time: Time = REAL,
    ) -> None:
        if len({item.peer for item in wanted}) != len(wanted):
            raise ValueError("a peer is wanted twice; collect once per kind of object")
        self._seconds_left, self._lasting, self._time = seconds_left, lasting, time
        self._shelf = None if cache is None else Shelf(cache, only=room is not None)
        asked = share(wanted, self._shelf)
        self._shared = {one.item.peer: one for one in asked}
        self._num_threads = min(max_threads, len(asked))
        self._waiting = [_Turn(_remembering(one.item), rank) for rank, one in enumerate(asked)]
        self._found: dict[PeerId, Data] = {}
        self._faults: dict[PeerId, FetchFault] = {}
        """Final faults."""
        self._busy: set[_Turn] = set()
        self._num_started = 0
        self._num_running = 0
        self._until = self._began = time.now()
        self._failure: Exception | None = None
        self._closed = False
        self._changed = time.condition()
        self._task: Task | None = None
        self._outcome: Mapping[PeerId, Data | FetchFault] = {}
        if self._shelf is not None and room is not None:
            self._leave_out(self._shelf, room)

    def run(self) -> Mapping[PeerId, Data | FetchFault]:
        """Collect and return bytes or a Fault for every peer. Call once. Raises any exception of `accept` or
        `seconds_left`."""
        try:
            while (left := self._seconds_left()) > 0:
                with self._changed:
                    now = self._time.now()
                    self._until, look = now + left, now + min(left, _LOOK_SECONDS)
                    while not self._over and (now := self._time.now()) < look:
                        self._changed.wait(min(self._begin_due(now), look) - now)
                    if self._over:
                        break
        finally:
            outcome = self._close()
        if self._failure is not None:
            raise self._failure
        return outcome

    def found(self) -> dict[PeerId, Data]:
        """Return the objects fetched so far."""
        with self._changed:
            each = self._of_each(self._found)
        return {peer: data for peer, data in each.items() if not isinstance(data, FetchFault)}

    def start(self, ended: Callable[[], None] = lambda: None) -> "Collection":
        """Call `run` in its own thread. `ended` is called there when no more will come."""

        def beside() -> None:
            try:
                self._outcome = self.run()
            except Exception as error:  # noqa: BLE001 - raised where the outcome is asked for
                self._failure = error
            finally:
                ended()

        self._task = self._time.start(beside, "collect")
        return self

    def wait(self, seconds: float) -> None:
        """Wait for the thread of `start`, at most so long."""
        if self._task is not None and seconds > 0:
            self._task.join(seconds)

    def outcome(self) -> Mapping[PeerId, Data | FetchFault]:
        """Wait for the thread of `start`; return or raise the result of `run`."""
        if self._task is not None:
            self._task.join()
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def stop(self) -> None:
        """Stop fetching; returns at once. A request in flight (at most a part of 16 MiB) may still end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._task is not None:
            self._task.join()

    @property
    def _over(self) -> bool:
        return self._closed or self._failure is not None or not self._num_open

    @property
    def _num_open(self) -> int:
        return len(self._waiting) + len(self._busy)

    def _leave_out(self, shelf: Shelf, room: int) -> None:
        kept = []
        for turn in self._waiting:
            new = 0 if shelf.has(turn.item) else turn.item.size
            if new <= room:
                room -= new
                kept.append(turn)
            else:
                self._faults[turn.item.peer] = FetchFault(
                    "left_out", "our disk has no room for it after better-rated ones"
                )
        self._waiting = kept

    def _close(self) -> dict[PeerId, Data | FetchFault]:
        """Close and return the outcome. An abandoned thread then holds no data except its one request."""
        with self._changed:
            self._closed = True
            outcome: dict[PeerId, Data | FetchFault] = {t.item.peer: t.fault for t in (*self._waiting, *self._busy)}
            outcome |= self._faults
            outcome |= self._found
            self._found, self._waiting = {}, []
            return self._of_each(outcome)

    def _of_each(self, found: Mapping[PeerId, Data | FetchFault]) -> dict[PeerId, Data | FetchFault]:
        """Return what each peer has got of these."""
        return {peer: own for asked, one in found.items() for peer, own in self._shared[asked].outcome(one).items()}

    # --- turns -------------------------------------------------------------------------------------------------

    def _begin_due(self, now: float) -> float:
        """Start threads for the turns that are due; return when the next turn is due."""
        for _ in range(min(len(self._ready(now)), self._num_threads - self._num_running)):
            self._num_started += 1
            self._num_running += 1
            self._time.start(self._work, f"collect-{self._num_started}")
        return min((turn.due for turn in self._waiting if turn.due > now), default=self._until)

    @property
    def _crowded(self) -> bool:
        return self._num_open > self._num_threads

    def _ready(self, now: float) -> list[_Turn]:
        held = sum(turn.turns > 0 for turn in self._busy)
        first = [turn for turn in self._waiting if not turn.turns]
        num_due = sum(turn.due <= now for turn in first)
        # Who has shown nothing yet may still do so, or never: a promise costs nothing, so all of them hold little.
        promised = min(len(first) - num_due, max(1, self._num_threads // _PROMISED_SHARE))
        kept_free = min(self._num_threads // 2, num_due + promised)
        may_hold = not self._crowded or held < self._num_threads - kept_free
        return [turn for turn in self._waiting if turn.due <= now and (may_hold or not turn.turns)]

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            turn, share = taken
            try:
                began, before = self._time.now(), self._brought(turn.item)
                found, cut_short = fetch(
                    turn.item,
                    timeout_seconds=share,
                    shelf=self._shelf,
                    stopped=lambda: self._closed,
                    time=self._time,
                )
                if self._shelf is not None and not isinstance(found, FetchFault):
                    self._shared[turn.item.peer].put_away(self._shelf, found)
                pace = (self._brought(turn.item) - before) / max(self._time.now() - began, _LEAST_SHARE_SECONDS)
            except Exception as error:  # noqa: BLE001 - our fault, not the peer's: raised where `run` was called
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()
                    return
            with self._changed:
                if self._closed:
                    return
                self._settle(turn, found, cut_short, max(0, int(pace)))

    def _take(self) -> tuple[_Turn, float] | None:
        """Take the next turn and the seconds that it may use. None ends the thread; `run` starts others."""
        with self._changed:
            now = self._time.now()
            left = self._until - now
            ready = self._ready(now)
            if self._closed or not ready or left <= 0:
                self._num_running -= 1
                self._changed.notify_all()
                return None
            turn = min(ready, key=lambda turn: turn.place)
            share = left
            if self._crowded:
                share = left * self._num_threads / self._num_open
                if self._shelf is not None and self._shelf.only and self._resumes(turn.item):
                    share *= _SAMPLE_SHARE * 2**turn.turns
                elif self._lasting:
                    share *= _FIRST_SHARE * 2**turn.turns
                share = min(left, max(share, _LEAST_SHARE_SECONDS))
            if turn.fault is _NOT_ASKED:
                turn.fault = _NO_ANSWER
            self._waiting.remove(turn)
            self._busy.add(turn)
            return turn, share

    def _settle(self, turn: _Turn, found: Data | FetchFault, cut_short: bool, pace: int) -> None:
        self._busy.remove(turn)
        if not isinstance(found, FetchFault):
            self._found[turn.item.peer] = found
        elif (
            found.kind == "left_out"
            or not (cut_short or self._lasting)
            or _leads_nowhere(turn.item, found)
            or (found.kind == "mismatch" and turn.garbage and self._resumes(turn.item))
        ):
            self._faults[turn.item.peer] = found
        else:
            if cut_short:
                turn.turns, turn.pace = turn.turns + 1, pace
            else:
                turn.asked += 1
                turn.garbage += found.kind == "mismatch"
            turn.fault = found
            turn.due = self._time.now() if cut_short else self._time.now() + self._pause(turn)
            self._waiting.append(turn)
        if self._over:
            self._changed.notify_all()

    def _resumes(self, item: Wanted) -> bool:
        return self._shelf is not None and self._shelf.resumes(item)

    def _brought(self, item: Wanted) -> int:
        return 0 if self._shelf is None else self._shelf.brought(item)

    def _pause(self, turn: _Turn) -> float:
        """Return the seconds until a missing object is requested again."""
        shortest, longest = _PAUSE_SECONDS
        asked = Counter(source.endpoint for other in (*self._waiting, *self._busy) for source in other.item.sources)
        to_one = max((asked[source.endpoint] for source in turn.item.sources if source.endpoint), default=0)
        window = self._until - self._began
        if turn.item.opening is not None:
            # A large object should have been there from the beginning: it is asked for less and less often.
            longest = window = 2.0 ** (turn.asked - 1) * window
        questions = max(asked.total() / _QUESTIONS_PER_SECOND, to_one / _QUESTIONS_TO_ONE)
        return max(min(max(window / _PAUSES, shortest), longest), questions)


def _leads_nowhere(item: Wanted, fault: FetchFault) -> bool:
    """Whether no source remains that could be asked again."""
    return not item.sources or (fault.kind == "refused" and len(item.sources) == 1)


def _remembering(item: Wanted) -> Wanted:
    """Return the item with pointers that are not opened again after a refusal."""

    def once(open: Callable[[], RangedBucket]) -> Callable[[], RangedBucket]:
        refusals: list[ConfigError] = []

        def opened() -> RangedBucket:
            if refusals:
                raise refusals[0]
            try:
                return open()
            except ConfigError as refusal:
                refusals.append(refusal)
                raise

        return opened

    return replace(item, sources=tuple(replace(source, open=once(source.open)) for source in item.sources))


def gather(
    wanted: Sequence[Wanted],
    *,
    timeout_seconds: float,
    max_threads: int,
    cache: Path | None = None,
    time: Time = REAL,
) -> Mapping[PeerId, Data | FetchFault]:
    """Fetch objects that should exist by now; return bytes or a Fault for every peer within `timeout_seconds`."""
    until = time.now() + timeout_seconds
    return Collection(
        wanted, seconds_left=lambda: seconds_until(until, time), max_threads=max_threads, cache=cache, time=time
    ).run()


def first(
    wanted: Sequence[Wanted], *, timeout_seconds: float, max_threads: int, time: Time = REAL
) -> tuple[PeerId, Data] | None:
    """Ask all sources concurrently; return the first accepted object and the peer whose source gave it.

    None when no source gave one within `timeout_seconds`.
    """
    until = time.now() + timeout_seconds
    found: list[tuple[PeerId, Data]] = []

    def ending(item: Wanted) -> Wanted:
        def accept(data: Data) -> bool:
            if not item.accept(data):
                return False
            found.append((item.peer, data))
            collection.stop()
            return True

        return replace(item, accept=accept)

    collection = Collection(
        [ending(item) for item in wanted],
        seconds_left=lambda: seconds_until(until, time),
        max_threads=max_threads,
        time=time,
    )
    collection.run()
    return found[0] if found else None
