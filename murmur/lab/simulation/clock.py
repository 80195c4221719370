"""One modelled clock for all nodes of a simulation, whose threads take turns in a single one.

Nodes stay synchronous code, and their threads are greenlets here. One runs until it calls into its `Time`; then the one
that is due first continues, and time jumps to that moment: idle time costs nothing. Work that is due at the same moment
runs in an order drawn from the seed, so one seed is one history and other seeds are other interleavings. Nothing here
reads a real clock, and nothing races. (Real threads that hand over locks to one another take half as long again.)
"""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from types import TracebackType

from greenlet import getcurrent, greenlet

EPOCH = 1_700_000_000.0
"""Unix seconds at which modelled time begins."""


class Killed(BaseException):
    """kill -9, as seen from inside: every call into the time of a dead process raises it, so that none of its code runs
    any further. Only code that catches BaseException and continues could notice."""


class Work:
    """A unit of concurrent work (murmur.protocol.ports.Task)."""

    def __init__(self, life: "Life", name: str, work: Callable[[], None] | None) -> None:
        self.life, self.name, self.work = life, name, work
        self.worker: Worker | None = None
        self.turn = 0
        """Counts its waits: a wake-up for an earlier turn is void."""
        self.notified = False
        self.ended = False
        self.joined_by: list[Work] = []

    def join(self, timeout: float | None = None) -> None:
        clock = self.life.clock
        if self.ended:
            return
        work = clock.running()
        self.joined_by.append(work)
        if not clock.park(None if timeout is None else clock.now + timeout):
            self.joined_by.remove(work)

    def is_alive(self) -> bool:
        return not self.ended


class Worker:
    """A greenlet, reused for other work: starting one costs more than a turn."""

    def __init__(self, clock: "Clock") -> None:
        self.clock = clock
        self.greenlet = greenlet(self.run)
        self.work: Work | None = None

    def run(self) -> None:
        while (work := self.work) is not None:
            self.clock.live(work)
            self.work = None
            self.clock.idle.append(self)
            following = self.clock.following()
            if following is not self:
                self.clock.go_on(following)


class Clock:
    """Modelled seconds since the simulation's begin, and the schedule of turns. `random` draws the order of work due at
    the same moment."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"clock {seed}")
        self.now = 0.0
        self.turns = 0
        """Number of turns: the cost of a run."""
        self.idle: list[Worker] = []
        self._due: list[tuple[float, float, int, Work | Callable[[], None], int]] = []
        self._count = 0
        self._failure: BaseException | None = None
        self._stopped = False
        self._main = Work(Life(self, "main"), "main", None)
        self._main.worker = Worker(self)
        self._running: Work | None = self._main
        self._holder = getcurrent()
        self._starter = greenlet(self._start_workers)
        self._starter.switch()

    # --- for whoever holds the simulation ------------------------------------------------------------------------

    def life(self, name: str) -> "Life":
        """Return the time of a new process."""
        return Life(self, name)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Schedule `call` at a moment: an event of the outside world, which may not wait."""
        self._push(when, call, 0)

    def run(self, until: float) -> None:
        """Run all work until `until`, or until `stop`. Raises the failure of an event, or an error that work did not
        catch."""
        self._stopped = False
        main = self.running()
        main.turn += 1
        self._push(until, main, main.turn)
        self._switch(main)
        main.turn += 1
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def stop(self) -> None:
        """Make `run` return before anything else happens."""
        self._stopped = True

    def close(self) -> None:
        """End all workers; all processes must be dead."""
        self.idle.clear()

    # --- for lives -----------------------------------------------------------------------------------------------

    def running(self) -> Work:
        """Return the work whose turn it is. An event of the world has none: it may not wait."""
        assert self._running is not None, "an event of the world outside waits for something"
        return self._running

    def begin(self, work: Work) -> None:
        """Give new work its first turn."""
        self._push(self.now, work, work.turn)

    def park(self, until: float | None) -> bool:
        """Suspend the running work until it is woken (True) or `until` has come (False). Raises Killed."""
        work = self.running()
        if work.life.dead:
            raise Killed
        work.turn += 1
        work.notified = False
        work.life.parked[work] = None
        if until is not None:
            self._push(until, work, work.turn)
        self._switch(work)
        del work.life.parked[work]
        if work.life.dead:
            raise Killed
        return work.notified

    def wake(self, work: Work) -> None:
        """Wake work that waits for an event."""
        if not work.notified and not work.ended:
            work.notified = True
            work.turn += 1
            self._push(self.now, work, work.turn)

    def live(self, work: Work) -> None:
        """Run work to its end, in its worker."""
        assert work.work is not None
        try:
            if not work.life.dead:
                work.work()
        except Killed:
            pass
        except BaseException as failure:  # noqa: BLE001 - raised where the simulation is run
            self._failure = failure
            self._stopped = True
        work.ended = True
        for other in work.joined_by:
            self.wake(other)

    def following(self) -> Worker:
        """Advance time until work is due; return its worker."""
        self._running = None
        work = self._next()
        self._running = work
        self.turns += 1
        if work.worker is None:
            work.worker = self.idle.pop() if self.idle else Worker(self)
            work.worker.work = work
        return work.worker

    def go_on(self, worker: Worker) -> None:
        """Switch to another worker. The starter starts new ones: a greenlet inherits its recursion depth from the one
        that starts it, and workers that each started the next would soon be too deep."""
        if worker.greenlet:
            worker.greenlet.switch()
        else:
            self._starter.switch(worker)

    # --- inside --------------------------------------------------------------------------------------------------

    def _switch(self, work: Work) -> None:
        assert work.worker is not None
        work.worker.greenlet = getcurrent()  # for the holder of the simulation: the caller's own
        following = self.following()
        if following is not work.worker:
            self.go_on(following)

    def _start_workers(self) -> None:
        worker: Worker = self._holder.switch()
        while True:
            worker = worker.greenlet.switch()

    def _next(self) -> Work:
        while not self._stopped:
            when, _, _, due, turn = heappop(self._due)
            self.now = max(self.now, when)
            if not isinstance(due, Work):
                try:
                    due()
                except BaseException as failure:  # noqa: BLE001 - raised where the simulation is run
                    self._failure = failure
                    self._stopped = True
            elif due.turn == turn:
                if due.life.frozen_until > self.now and not due.life.dead:
                    self._push(due.life.frozen_until, due, turn)
                else:
                    due.turn += 1
                    return due
        return self._main

    def _push(self, when: float, due: Work | Callable[[], None], turn: int) -> None:
        self._count += 1
        heappush(self._due, (when, self.random.random(), self._count, due, turn))


class Life:
    """The time of one process (murmur.protocol.ports.Time), from its start to its death."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name = clock, name
        self.dead = False
        self.frozen_until = 0.0
        self.wall_offset = 0.0
        """Seconds by which this machine's clock is wrong."""
        self.parked: dict[Work, None] = {}

    # --- what is done to it --------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Apply kill -9: its work ends at once and gets no further turn in the world."""
        self.dead = True
        for work in self.parked:
            work.notified = False
            self.clock.wake(work)

    def freeze(self, seconds: float) -> None:
        """Apply SIGSTOP, and SIGCONT after `seconds`. Time continues for all other processes."""
        self.frozen_until = max(self.frozen_until, self.clock.now + seconds)

    # --- what it sees --------------------------------------------------------------------------------------------

    def now(self) -> float:
        if self.dead:
            raise Killed
        return self.clock.now

    def wall(self) -> float:
        if self.dead:
            raise Killed
        return EPOCH + self.clock.now + self.wall_offset

    def sleep(self, seconds: float) -> None:
        self.clock.park(self.clock.now + max(0.0, seconds))

    def condition(self) -> "Condition":
        return Condition(self.clock)

    def start(self, work: Callable[[], None], name: str) -> Work:
        if self.dead:
            raise Killed
        started = Work(self, f"{self.name} {name}", work)
        self.clock.begin(started)
        return started


class Condition:
    """A lock that can be waited on (murmur.protocol.ports.Condition), re-entrant like threading's own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owner: Work | None = None
        self._depth = 0
        self._locked_out: list[Work] = []
        self._waiting: list[Work] = []

    def __enter__(self) -> bool:
        work = self._clock._running
        # An event of the world (None) never finds it locked by other work: it takes no locks of nodes.
        while self._depth and self._owner is not work:
            self._locked_out.append(self._clock.running())
            self._clock.park(None)
        self._owner = work
        self._depth += 1
        return True

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owner is self._clock._running:  # else it was killed while it did not hold the lock
            self._depth -= 1
            if not self._depth:
                self._free()

    def wait(self, timeout: float | None = None) -> bool:
        work, depth = self._clock.running(), self._depth
        assert self._owner is work, "a condition is waited on inside its with block"
        self._waiting.append(work)
        self._depth = 0
        self._free()
        try:
            notified = self._clock.park(None if timeout is None else self._clock.now + timeout)
        finally:
            if work in self._waiting:
                self._waiting.remove(work)
        while self._depth:
            self._locked_out.append(work)
            self._clock.park(None)
        self._owner, self._depth = work, depth
        return notified

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self._clock.wake(work)

    def _free(self) -> None:
        self._owner = None
        locked_out, self._locked_out = self._locked_out, []
        for work in locked_out:
            self._clock.wake(work)
