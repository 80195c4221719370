"""A node's metrics for Prometheus, from its own events: `http://ADDRESS:PORT/metrics`.

Almost all values come from the node's events (docs/events.md), and the node never waits for a scrape.
"""

import errno
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shutil import disk_usage
from typing import Any

from loguru import logger
from prometheus_client import CollectorRegistry, Counter, Gauge, Info, start_http_server
from prometheus_client.core import CounterMetricFamily

from murmur.node.telemetry.trouble import Standing
from murmur.protocol.errors import ConfigError, one_line
from storage.transport import TRAFFIC

LAST_ERROR_CHARACTERS = 300
LAST_ROUNDS, FEWEST_ROUNDS = 4, 2
"""Where no clock plans a round, it is planned to last as long as the longest of the last few. One is too few: a member
that joins late sees only its end."""
FAULTS = (
    "interrupted",
    "not_followed",
    "damaged",
    "unobserved",
    "weights_refused",
    "weights_not_taken",
    "update_returned",
    "diverged",
)
TROUBLE_LABELS = ("about", "cause", "owner", "says", "costs", "do")
"""Constant words of a cause (murmur/node/telemetry/causes.py): an alert shows them."""
GUESSES = ("right", "wrong")
VERDICTS = ("as_shown", "not_as_shown", "none_shown", "given_up")
ROUND_PLANNED = "planned length of a round; where none is planned, the longest of the last four"
ROUND_TIMESTAMP = "when a decision was last applied; before the first one, when the node began"
COUNTED_TIMESTAMP = "when it last contributed or judged; before that, when it began"
WEIGHTS_TIMESTAMP = "when it last set weights; before that, when it began"


class _Moved:
    """Counts all bytes to and from buckets, with retries and interrupted transfers: the traffic that is billed."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        moved = CounterMetricFamily("murmur_moved_bytes", "to and from buckets", labels=["direction"])
        for direction, count in zip(("up", "down"), TRAFFIC.moved(), strict=True):
            moved.add_metric([direction], count)
        yield moved


class Metrics:
    """The metrics of one node. `see` takes its events, in order."""

    def __init__(self, run: str, home: Path, round_seconds: float | None) -> None:
        """round_seconds: planned length of a round; None if no clock plans it."""
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._lengths = deque[float](maxlen=LAST_ROUNDS) if round_seconds is None else None
        """Of the last rounds, in seconds; None where a clock plans them."""
        Info("murmur_run", "the run that is followed", registry=self.registry).info({"name": run})
        if round_seconds is not None:
            self._gauge("round_planned_seconds", ROUND_PLANNED).set(round_seconds)
        free = self._gauge("disk_free_bytes", "room left on the disk of the node's state")
        free.set_function(lambda: disk_usage(home).free)
        self._phases = Gauge("murmur_phase_seconds", "of the last round, by phase", ["phase"], registry=self.registry)
        self._rejected = Gauge("murmur_rejected", "of the last judged round", ["reason"], registry=self.registry)
        self.registry.register(_Moved())
        self._faults = Counter("murmur_faults", "what went wrong, by event", ["event"], registry=self.registry)
        self._guesses = Counter(
            "murmur_guesses", "selections that were expected before they were agreed", ["guess"], registry=self.registry
        )
        self._verified = Counter(
            "murmur_verified", "drawn miners whose steps were repeated, or not", ["verdict"], registry=self.registry
        )
        for counter, kinds in ((self._faults, FAULTS), (self._guesses, GUESSES), (self._verified, VERDICTS)):
            for kind in kinds:  # start at 0: Prometheus sees no increase in a counter that begins at 1
                counter.labels(kind)
        self._troubles = Gauge(
            "murmur_trouble", "1 for what keeps the node from its work", TROUBLE_LABELS, registry=self.registry
        )
        self._standing = Standing()
        self._error = Info("murmur_last_error", "the last warning or error of the log", registry=self.registry)
        self._error.info({"message": ""})
        self._missed = 0

    def serve(self, address: str, port: int) -> None:
        """Serve scrapes in a thread from now on. Raises ConfigError for an address that cannot be used."""
        try:
            start_http_server(port, address, registry=self.registry)
        except OSError as fault:
            what = "is in use" if fault.errno == errno.EADDRINUSE else f"cannot be had ({fault.strerror})"
            raise ConfigError(f"{address}:{port} {what}: choose another --metrics-port or --metrics-address") from None
        logger.add(self._note, level="WARNING", format="{message}")

    def recall(self, events: Iterable[Mapping[str, Any]], now: float, *, validates: bool) -> None:
        """Continue from the node's earlier events (last_events), so that a restart hides nothing. For an event that has
        not happened yet, time counts from the first event that is left, else from `now` (Unix seconds). What was told
        by a clock that was ahead happened now: an alert would be silent until then."""
        self._gauge("process_timestamp_seconds", "when this process began").set(now)
        begun: float | None = None
        for event in events:
            event = {**event, "time": min(event["time"], now)}
            begun = event["time"] if begun is None else begun
            self._show(event)
        awaited = {"round": ROUND_TIMESTAMP, "counted": COUNTED_TIMESTAMP}
        if validates:
            awaited["weights"] = WEIGHTS_TIMESTAMP
        for name, what in awaited.items():
            if f"{name}_timestamp_seconds" not in self._gauges:
                self._gauge(f"{name}_timestamp_seconds", what).set(now if begun is None else begun)

    def see(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        self._show(event)
        kind = event["event"]
        if kind == "applied" and event["guess"] is not None:
            self._guesses.labels(event["guess"]).inc()
        elif kind in ("verified", "unverified"):
            self._verified.labels(_verdict(event)).inc()
        elif kind in FAULTS:
            self._faults.labels(kind).inc()

    def _show(self, event: Mapping[str, Any]) -> None:
        kind, round = event["event"], event["round"]
        if kind in ("trouble", "mended", "started"):
            self._standing.take(event)
            self._troubles.clear()
            for trouble in self._standing.now():
                self._troubles.labels(*(trouble[name] for name in TROUBLE_LABELS)).set(1)
        elif kind in ("round_outcome", "judged"):
            self._told(event)
        elif kind == "applied":
            self._gauge("round", "the last round whose decision was applied").set(round)
            self._gauge("round_timestamp_seconds", ROUND_TIMESTAMP).set(event["time"])
            self._gauge("void", "1 when it was void").set(event["void"])
            self._gauge("selected", "how many contributed to it").set(len(event["contributing"]))
            if event["after"] is not None:  # a cluster has no blocks
                self._gauge("decided_blocks", "blocks from its deadline to its decision").set(event["after"])
        elif kind == "phases":
            self._phases.clear()
            for phase in event["phases"]:
                self._phases.labels(phase["phase"]).inc(phase["seconds"])
            computed = sum(phase["seconds"] for phase in event["phases"] if phase["phase"] == "compute")
            whole = max((phase["began"] + phase["seconds"] for phase in event["phases"]), default=0.0)
            if computed:
                self._gauge("compute_share", "share of the last round in which it trained, 0 to 1").set(
                    computed / whole
                )
            if computed and self._lengths is not None:
                self._lengths.append(whole)
                if len(self._lengths) >= FEWEST_ROUNDS:
                    self._gauge("round_planned_seconds", ROUND_PLANNED).set(max(self._lengths))
        elif kind == "trained" and event["loss"] is not None:
            self._gauge("loss", "mean training loss of the last round, nats a token").set(event["loss"])
        elif kind == "claimed":
            self._gauge("steps", "inner steps that a cluster's member sent last").set(event["steps"])
        elif kind == "closed":
            waited = "members for which the last round that this one closed did not wait any longer"
            self._gauge("given_up", waited).set(len(event["waited_for"]))
        elif kind == "published":
            self._gauge("payload_bytes", "size of the last payload").set(event["payload_bytes"])
        elif kind == "held_out":
            self._gauge("held_out_loss", "held-out loss after the last round, nats a token").set(event["val_loss"])
        elif kind == "weights":
            self._gauge("weights_block", "block of the last set of weights").set(event["block"])
            self._gauge("weights_timestamp_seconds", WEIGHTS_TIMESTAMP).set(event["time"])
        elif kind in FAULTS:
            self._gauge("fault_timestamp_seconds", "when something last went wrong").set(event["time"])

    def _told(self, event: Mapping[str, Any]) -> None:
        """Show a `round_outcome` or `judged` event, the node's summary of a round."""
        miner = event["event"] == "round_outcome"
        counted = event["outcome"] == "contributing" if miner else event["unobserved"] is None
        self._missed = 0 if counted else self._missed + 1
        self._gauge("told_round", "the last round that the node has told in one line").set(event["round"])
        self._gauge("contributing", "1 when the node contributed to that round, or judged it").set(counted)
        self._gauge("rounds_missed", "rounds on end in which it did not").set(self._missed)
        self._gauge("active", "how many had committed in time").set(event["active"])
        if counted:
            self._gauge("counted_timestamp_seconds", COUNTED_TIMESTAMP).set(event["time"])
        if miner:
            for name, what in (
                ("pay", "share of the pay that validators have computed, 0 to 1"),
                ("margin", "blocks from the commitment to the deadline"),
            ):
                if event[name] is not None:
                    self._gauge({"pay": "pay_share", "margin": "deadline_margin_blocks"}[name], what).set(event[name])
            return
        self._gauge("evaluated", "how many were evaluated").set(event["evaluated"])
        self._gauge("weights_unrevealed", "earlier sets of weights that wait to be revealed").set(event["unrevealed"])
        self._rejected.clear()
        for reason, count in event["rejected"].items():
            self._rejected.labels(reason).set(count)

    def _gauge(self, name: str, what: str) -> Gauge:
        """Return the gauge, created on first use: an unknown value is not exported as 0."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"murmur_{name}", what, registry=self.registry)
        return self._gauges[name]

    def _note(self, message: Any) -> None:
        self._error.info({"message": one_line(message.record["message"], LAST_ERROR_CHARACTERS)})


def _verdict(event: Mapping[str, Any]) -> str:
    if event["event"] == "unverified":
        return "given_up"
    return "as_shown" if event["passed"] else "not_as_shown" if event["declared"] else "none_shown"
