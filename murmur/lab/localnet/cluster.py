"""A complete cluster on this machine: SeaweedFS, members as separate processes, and kill -9 now and then."""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from murmur.cluster.bootstrap import open_shared, require_group
from murmur.cluster.creation import draft, make_token, place, put_up, require_store
from murmur.cluster.group_keys import Group, Token
from murmur.cluster.ledger import Ledger
from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.lab.localnet.infrastructure import wait_for
from murmur.lab.localnet.processes import Processes
from murmur.lab.localnet.store import read_ready
from murmur.lab.localnet.training_text import text_data
from murmur.node.telemetry.events import read_events
from murmur.owner.theta import make_theta
from murmur.protocol.cluster import GROUP, ClusterSpec
from murmur.protocol.errors import ConfigError, StorageError
from storage.realtime import REAL

BUCKET = "cluster"
BEAT_SECONDS, SILENT_SECONDS = 0.5, 5.0
KEEP_ROUNDS = 64
STALLED_SECONDS = 180.0
"""A demo without a new record for this time has failed."""
AWAY_SECONDS = 3.0


def play(
    folder: Path, members: int, kills: int, rounds: int, seed: int, source: str = "tiny", *, quiet: bool = False
) -> dict[str, Any]:
    """Run `rounds` rounds of a preset or a file; return the results. Raises ConfigError when a process does not
    start."""
    if not 1 <= members <= 16 or not 0 <= kills <= 100 or rounds < 1:
        raise ConfigError("a demo needs 1 to 16 members, 0 to 100 kills and at least one round")
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: print(line, flush=True))  # noqa: T201
    processes = prepare(folder)
    try:
        token, spec = set_up(folder, processes, seed, presets.table(source), say)
        names = [f"member-{number}" for number in range(1, members + 1)]
        for name in names:
            words = program(folder, name)
            processes.start(name, words, words)
        say(f"{members} members train {rounds} rounds of {spec.inner.steps} inner steps; {kills} kills")
        killed: list[str] = []
        deaths = _kills(names, kills, rounds, seed, processes, killed, say)
        done = _until(token, spec, rounds, processes, deaths, say)
    finally:
        processes.stop()
    step_tokens = spec.inner.sequences * spec.model.context
    result = results(folder, names, done, len(killed), step_tokens)
    (folder / "report.json").write_text(json.dumps(result, indent=2) + "\n")
    say(
        f"{result['rounds']} rounds, replicas {'identical' if result['identical'] else 'NOT IDENTICAL'}, loss "
        f"{result['loss_first']:.2f} -> {result['loss_last']:.2f}, {result['kills']} kills, "
        f"{result['repeated_steps']} steps repeated by the surviving members"
    )
    say(f"page   murmur dashboard {quote(str(folder))}")
    return result


def prepare(folder: Path) -> Processes:
    """Return an empty set of processes, whose logs go to `folder`. Our own settings are kept out of them."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
    return Processes(logs, {**ours, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})


def set_up(
    folder: Path, processes: Processes, seed: int, table: dict[str, Any], say: Callable[[str], None]
) -> tuple[Token, ClusterSpec]:
    """Start the store, create in it the run of this spec's table, with a demo's beats unless it has its own, and
    write the token's file."""
    say("starting the store")
    server = ["-m", "murmur.lab.localnet.seaweed", "--folder", str(folder / "store"), BUCKET]
    processes.start("store", server, server)
    ready = folder / "store" / "ready.json"
    data_from = text_data(say)
    wait_for(ready.exists, processes, "the object store")
    store = read_ready(ready)
    user = store.users[BUCKET]
    where = place(store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    bucket, data = open_shared(where), Shards.open(data_from)
    require_store(bucket)
    fast = {"beat_seconds": BEAT_SECONDS, "silent_seconds": SILENT_SECONDS, "keep_rounds": KEEP_ROUNDS}
    table = table | {"cluster": fast | dict(table.get("cluster") or {})}
    drafted = draft(table, "demo", data, local=True, own_vocabulary=True)
    theta = make_theta(folder / "theta", drafted, seed, data)
    spec = put_up(folder, bucket, drafted, data_from, data, theta)
    token = make_token(spec, where)
    require_group(bucket, spec.digest, Group(token.secret))
    write_token(folder / "token", token)
    return token, spec


def write_token(path: Path, token: Token) -> None:
    """Write the token's file, which only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(token.encode())


def reader(token: Token, spec: ClusterSpec) -> Ledger:
    """Return the run's ledger, to read it: of no member."""
    return Ledger(open_shared(token), spec.digest, Group(token.secret), GROUP, REAL)


def program(folder: Path, name: str, *, token: Path | None = None, data: Path | None = None) -> list[str]:
    """Return python's arguments for the member `name`. token: another file than the run's, for a link of its own. data:
    folder of the data set, if it does not fetch it."""
    words = {"--token-file": token or folder / "token", "--name": name, "--home": folder / "nodes" / name}
    words |= {"--device": "cpu"} | ({} if data is None else {"--data": data})
    return ["-m", "murmur", "member", *(str(word) for pair in words.items() for word in pair)]


def _kills(
    names: list[str],
    kills: int,
    rounds: int,
    seed: int,
    processes: Processes,
    killed: list[str],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Yield once per ended round. At drawn rounds, never the first two or the last three, kill a member and append it
    to `killed`."""
    draw = random.Random(f"kills {seed}")
    late = range(2, max(3, rounds - 3))
    when = sorted(draw.choice(late) for _ in range(kills))
    for round in range(rounds):
        for _ in range(when.count(round)):
            victim = draw.choice(names)
            say(f"round {round}: kill -9 of {victim}")
            processes.kill(victim, AWAY_SECONDS)
            killed.append(victim)
        yield


def _until(
    token: Token,
    spec: ClusterSpec,
    rounds: int,
    processes: Processes,
    kills: Iterator[None],
    say: Callable[[str], None],
) -> int:
    """Wait for the records of all rounds; return how many there are."""
    ledger = reader(token, spec)
    round, since = 0, time.monotonic()
    while round < rounds and time.monotonic() < since + STALLED_SECONDS:
        if ended := processes.watch():
            raise ConfigError(f"{ended[0]} ended for good:\n{processes.last_lines(ended[0])}")
        try:
            record = ledger.record(round)
        except StorageError:
            record = None
        if record is None:
            time.sleep(0.2)
            continue
        say(f"round {round}: {len(record.updates)} contributed, {sum(u.steps for u in record.updates)} steps")
        next(kills, None)
        round, since = round + 1, time.monotonic()
    time.sleep(4 * BEAT_SECONDS)  # for members that still apply the last one
    return round


def results(folder: Path, names: list[str], rounds: int, kills: int, step_tokens: int) -> dict[str, Any]:
    """Compute the results from the members' own events. step_tokens: of one member's inner step. A step is repeated
    when one process trains a round again; a process that was killed and came back is another one."""
    thetas: dict[int, set[str]] = {}
    losses: dict[int, list[float]] = {}
    repeated = 0
    for name in names:
        here = set[int]()
        """Rounds that this process has trained."""
        for event in read_events(folder / "nodes" / name / "events.jsonl"):
            round = event["round"]
            if event["event"] == "joined":
                here.clear()
            elif event["event"] == "applied":
                thetas.setdefault(round, set()).add(event["theta"])
            elif event["event"] == "trained" and event["loss"] is not None:
                losses.setdefault(round, []).append(event["loss"])
                repeated += event["tokens"] // step_tokens * (round in here)
                here.add(round)
    means = [sum(found) / len(found) for _, found in sorted(losses.items())]
    return {
        "rounds": rounds,
        "identical": all(len(found) == 1 for found in thetas.values()) and len(thetas) >= rounds - 1,
        "loss_first": means[0] if means else float("nan"),
        "loss_last": means[-1] if means else float("nan"),
        "kills": kills,
        "repeated_steps": repeated,
    }
