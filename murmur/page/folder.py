"""The run folder of a local network, or of a cluster's demo, as a source of the page: its nodes' events, names, spec,
and whether it has ended.

It reads only files, so it works while the network runs, after its end, and wherever the folder was moved to.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmur.node.telemetry.trouble import Standing, from_the_future
from murmur.page.cluster import ClusterNow, round_seconds
from murmur.page.evaluations import Evaluations, in_folder
from murmur.page.member_events import MemberEvents
from murmur.page.rounds import Rounds
from murmur.page.source import PORTION_BYTES, Stage
from murmur.page.tail import Tail, line_at
from murmur.protocol.cluster import ClusterSpec, parse_cluster
from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.messages import canonical_json
from murmur.protocol.spec import RunSpec, TrainingSpec, parse_spec
from murmur.protocol.types import DIGEST_BYTES, Digest, peer_id

if TYPE_CHECKING:
    from murmur.page.server import Page

BY_HAND = "owner.toml"
"""Settings of a run's owner: where this file exists, nodes are started by hand (`murmur devnet`)."""
PUBLIC = "wallets/*/hotkeys/defaultpub.txt"
MEMBER = "nodes/*/*/member"
"""A member of a cluster keeps its id there."""
SILENT_ROUNDS, SILENT_SECONDS = 2.0, 30.0
"""A member that writes no event for so many usual rounds, and for so long, counts as silent."""


class Folder:
    """Source of the page over a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds = Rounds()
        self._tails: dict[str, Tail] = {}
        self._evaluations = Evaluations(in_folder(path))
        self._names: dict[str, str] = {}
        self._spec: TrainingSpec | None = None
        self._members = MemberEvents()
        self._stopped: dict[str, bool] = {}
        """By node, whether it was stopped on request and has not started again."""
        self._newest: dict[str, float] = {}
        self._progress: dict[str, float] = {}
        """By node, the time of its newest event, and of the newest that is no failure: retries are no progress."""
        self._standing = defaultdict[str, Standing](Standing)
        """By node, what keeps it from its work."""

    def read(self, max_bytes: int = PORTION_BYTES) -> bool:
        """Read the nodes' new events."""
        if len(self._names) != sum(len(list(self.path.glob(files))) for files in (PUBLIC, MEMBER)):
            self._names = names(self.path) | _member_names(self.path)
            self.rounds.hotkeys = {name: hotkey for hotkey, name in self._names.items()}
        self._evaluations.read(self.rounds)
        for home in sorted(self.path.glob("nodes/*")):
            tail = self._tails.setdefault(home.name, Tail(home / "events.jsonl"))
            for place, line in tail.lines():
                event = _event(line)
                if event is not None:
                    self.rounds.take(home.name, event, place)
                    self._members.take(home.name, event)
                    self._note(home.name, event)
                    if (kind := event.get("event")) in ("started", "stopped"):
                        self._stopped[home.name] = kind == "stopped" and event.get("fault") is None
                max_bytes -= len(line)
                if max_bytes <= 0:
                    return True
        return False

    def _note(self, node: str, event: dict[str, Any]) -> None:
        self._standing[node].take(event)
        if not isinstance(when := event.get("time"), float) or not isfinite(when):
            return
        self._newest[node] = when
        if event.get("event") in ("interrupted", "trouble"):
            self._progress.setdefault(node, when)
        else:
            self._progress[node] = when

    @property
    def names(self) -> Mapping[str, str]:
        """Hotkey -> name, for every member so far."""
        return self._names

    @property
    def spec(self) -> TrainingSpec | None:
        """The network's own spec. Where nodes were started by hand: the spec of the newest run that one of them
        follows. None before there is one."""
        if self._spec is None:
            places = [self.path / "spec.json", *self.path.glob("nodes/*/*/run.json")]
            found = [spec for place in places if (spec := _spec(place)) is not None]
            self._spec = max(found, key=_begins, default=None)
        return self._spec

    def stage(self) -> Stage:
        """Return the network's progress; it counts as silent when no node writes anything but failures."""
        homes, now = list(self.path.glob("nodes/*/node.toml")), time.time()
        silences = [
            now - file.stat().st_mtime + max(0.0, self._newest.get(node, 0.0) - self._progress.get(node, 0.0))
            for file in self.path.glob("nodes/*/events.jsonl")
            for node in (file.parent.name,)
        ]
        began = now - self.path.stat().st_mtime if self.path.exists() else 0.0
        rehearsed = sum((home.parent / "measured.json").exists() for home in homes)
        waits_for = None
        if not homes and self.spec is None:
            waits_for = "Starting: the object store, and the chain if there is one."
        elif self.spec is not None:
            waits_for = None
        elif (self.path / BY_HAND).exists():
            waits_for = "The chain and the object store are there: publish a run, and start the nodes."
        elif rehearsed < len(homes):
            waits_for = (
                f"Rehearsing a round on every node, to measure this machine: {rehearsed} of {len(homes)} are done."
            )
        else:
            waits_for = "Rehearsed: waiting for the chain to let the validators judge."
        ended = (self.path / "report.json").exists()
        stopped = bool(self._stopped) and all(self._stopped.values())
        troubles = tuple((node, one) for node, found in sorted(self._standing.items()) for one in found.now())
        for node, when in sorted(self._newest.items()):
            if (ahead := from_the_future(when, now)) is not None:
                troubles += ((node, ahead.fields()),)
        out = {node for node, one in troubles if one["about"] == "process"}
        out |= {node for node, is_stopped in self._stopped.items() if is_stopped}
        heard = {node: now - when for node, when in sorted(self._newest.items()) if node not in out}
        silent = max(0.0, min(silences, default=began))
        return Stage(waits_for, ended, silent, stopped=stopped, troubles=troubles, heard=heard)

    def cluster(self) -> ClusterNow | None:
        if not isinstance(self.spec, ClusterSpec):
            return None
        usual = SILENT_ROUNDS * (round_seconds(self.rounds) or 0.0)
        stage, ids = self.stage(), self.rounds.hotkeys
        before = time.time() - max(SILENT_SECONDS, usual)
        return ClusterNow(self._members.members(ids, before, ended=stage.ended))

    def close(self) -> None:
        pass

    def detail(self, number: int) -> dict[str, Any] | None:
        """Read the round's lines again from their offsets."""
        one = self.rounds.get(number)
        if one is None:
            return None
        said: dict[str, dict[str, Any]] = {}
        nodes: dict[str, tuple[float, list[Any]]] = {}
        deadlines = []
        for (node, kind), place in sorted(one.places.items()):
            if kind not in ("reported", "phases", "committed"):
                continue
            event = _event(line_at(self._tails[node].path, place))
            if event is None or event.get("event") != kind or event.get("round") != number:
                continue  # the file was replaced
            try:
                if kind == "reported":
                    for hotkey, row in event["peers"].items():
                        said.setdefault(hotkey, {})[node] = dict(row)
                elif kind == "phases":
                    phases = [(str(p["phase"]), float(p["began"]), float(p["seconds"])) for p in event["phases"]]
                    ended = max((began + seconds for _, began, seconds in phases), default=0.0)
                    nodes[node] = float(event["time"]) - ended, phases
                elif isinstance(self.spec, RunSpec):
                    clock = self.spec.clock
                    left = clock.start_block + number * clock.round_blocks + clock.commit - event["block"]
                    deadlines.append(float(event["time"]) + left * clock.block_seconds)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                continue
        began = min((start for start, _ in nodes.values()), default=0.0)
        return {
            "round": number,
            "peers": said,
            "unread": {},
            "phases": {
                node: [
                    {"phase": phase, "began": round(start - began + at, 3), "seconds": seconds}
                    for phase, at, seconds in phases
                ]
                for node, (start, phases) in nodes.items()
            },
            "deadline": round(sorted(deadlines)[len(deadlines) // 2] - began, 3) if deadlines and nodes else None,
        }


def _begins(spec: TrainingSpec) -> int:
    """The block in which a run begins: a newer one begins later."""
    return spec.clock.start_block if isinstance(spec, RunSpec) else 0


def _spec(path: Path) -> TrainingSpec | None:
    """Return the spec of a network's or cluster's `spec.json`, or of a node's `run.json`; None where it does not exist
    or cannot be read."""
    try:
        body = json.loads(path.read_bytes())
        table = body if path.name == "spec.json" else body["spec"]
        data, parse = canonical_json(table), parse_cluster if "cluster" in table else parse_spec
        return parse(data, Digest(sha256(data).digest()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidMessage, ConfigError):
        return None


def names(folder: Path) -> dict[str, str]:
    """Return every member's name by its SS58 hotkey, from the public halves of the wallets in a run folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob(PUBLIC)):
        try:
            address = str(json.loads(path.read_text())["ss58Address"])
            peer_id(address)
            found[address] = path.parents[1].name
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _member_names(folder: Path) -> dict[str, str]:
    """Return the name of each member of a cluster by its id."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob(MEMBER)):
        with suppress(OSError, ValueError):
            member = bytes.fromhex(path.read_text())
            if len(member) == DIGEST_BYTES:
                found[member.hex()] = path.parents[1].name
    return found


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def open_page(folder: Path, port: int = 0, host: str = "127.0.0.1") -> "Page | None":
    """Return the run's page, not started yet. None where its two packages are not installed. port: 0 for any free one.
    Raises ConfigError for a port that is taken, or an address that is not this machine's."""
    try:
        from murmur.page.server import Page
    except ModuleNotFoundError:
        return None
    page = Page(Folder(folder), port, host)
    sys.stderr.write(f"the page of this run is at {page.url}\n")
    return page
