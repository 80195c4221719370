"""Does `murmur plan` tell the truth? A network of real processes on links that are to it what 110 and 500 Mb/s are to
Covenant-72B, against the plan for the very same spec, links and machine.

    python benchmarks/bench_links.py --json

The round is covenant-72b-110's: its ratio of bytes to compute, and its clock, block for block, with `--spare` blocks
more before D, and before V. (The clock leaves a miner 2 % of its compute, and a validator some seconds for reading
payloads. Inner steps vary by more where nodes share two processors, and what a request takes does not shrink with the
round; who comes late does not count.) What differs is how long it takes: `--compute` seconds of inner steps stand for
20 minutes, and blocks and links shrink alike. So each miner's uplink needs as large a part of the round for its payload
as a 72B miner's for 1.4 GB, and its downlink for the others' payloads; a validator's likewise. The model's payload has
1.2 MB: large beside the headers of its requests, and resumed like a large one (storage/exchange.py, RESUMED_BYTES).
Each node has an uplink and a downlink of its own: proxies (murmur/lab/localnet/links.py), through which everything
passes that it exchanges with buckets.

Compared are the share of the time that miners compute, from the end of one round to that of the next; the same beside
their transfers only; how long before block D they have committed; and the phases. The plan's rates are those of
`murmur plan --measure`, run by as many processes at once as there are miners, because the nodes share the processors:
a miner's own machine has no other one on it. For the same reason validators run at a lower priority. Inner steps still
take longer in the network than in the trial, since chain, store, proxies and validators use the same processors. So
the plan's rate of compute is that of the network's own rounds 1 and 2. What an exchange with the chain takes is
measured on the network, too. Rounds 0 to 2 do not count: the first ones do not begin at their place yet, before the one
before is decided. Judging has no floors here, for a score of few sequences would leave honest miners out. The exit
status is 1 when the shares are more than 3 points apart, or a miner did not contribute to a round that counts.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

from murmur.chain.adapter import open_chain
from murmur.configs.presets import table as preset_table
from murmur.lab.localnet.members import LocalNode
from murmur.lab.localnet.network import Network, open_network
from murmur.lab.localnet.plan import CALL_SECONDS, NETUID, Link
from murmur.lab.localnet.plan import Plan as Setup
from murmur.lab.localnet.table import Table
from murmur.owner.folder import to_toml
from murmur.plan import presets
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import ROLES, Plan, link
from murmur.protocol.spec import RunSpec
from storage.exchange import RESUMED_BYTES

MODEL = "covenant-72b-110"
POINTS = 3.0
LOWER = 10
"""Of validators' priority. With less they could not even read payloads while miners compute."""
CALLS = 15
SKIPPED = 3
STALL_ROUNDS = 2.0
SMALL: Mapping[str, Any] = {
    "model": {
        "vocabulary": 264,
        "layers": 4,
        "width": 320,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 1280,
        "context": 128,
        "tie_embeddings": True,
    },
    "compression": {"k": 1024, "decay": 0.95},
    "inner": {
        "steps": 1,
        "sequences": 16,
        "peak_lr": 1e-3,
        "final_lr": 1e-4,
        "warmup_steps": 30,
        "decay_steps": 4000,
    },
    "data": {"page_sequences": 16, "held_out_sequences": 4},
    "gauntlet": {
        "reserve": 0,
        "evaluations": 2,
        "references": 1,
        "sample_sequences": 16,
        "proof_floor": 0.0,
        "proof_allowance": 10.0,
        "score_floor": 0.0,
    },
}
COMPUTE, UPLOAD, DOWNLOAD = "inner steps", "upload", "download"
PHASES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    COMPUTE: (("inner steps",), ("compute",)),
    "compress": (("compress",), ("compress",)),
    "seal": (("seal",), ("seal",)),
    "save sealed": (("save sealed",), ("save",)),
    UPLOAD: (("upload ahead", "publish"), ("upload",)),
    "commit": (("commit",), ("commit",)),
    DOWNLOAD: (("download", "open payloads"), ("prefetch", "download")),
    "apply": (("outer step", "load weights", "theta digest"), ("apply",)),
}
"""What is compared, by the names that a miner's plan and a node's own events have for it. Waits for a block are not."""


def small(miners: int, steps: int, spare: int) -> dict[str, Any]:
    """The spec's table for so many miners and inner steps, with the large one's clock and so many blocks more."""
    large = preset_table(MODEL)
    clock = {name: large["clock"][name] + 2 * spare for name in ("round_blocks", "reveal", "words")}
    clock["commit"] = large["clock"]["commit"] + spare
    table = {**SMALL, "checkpoint_rounds": large["checkpoint_rounds"], "clock": large["clock"] | clock}
    table["inner"] = SMALL["inner"] | {"steps": steps}
    table["data"] = SMALL["data"] | {"page_sequences": SMALL["inner"]["sequences"] * steps}
    table["gauntlet"] = SMALL["gauntlet"] | {"contributors": miners}
    return table


def measured_rates(path: Path, at_once: int, *words: str) -> Rates:
    """This machine's, as so many processes have them that measure at once, by the mean of what they found. words: more
    of `murmur plan`'s."""
    command = [
        sys.executable,
        "-m",
        "murmur",
        "plan",
        "--spec",
        str(path),
        "--with-data",
        "--measure",
        "--json",
        *words,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MURMUR_HOME": str(path.parent)}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
        for _ in range(at_once)
    ]
    found = [json.loads(process.communicate()[0])["rates"] for process in started]

    def rate(name: str) -> Rate:
        most = [one[name]["most"] for one in found]
        return Rate(mean(one[name]["one"] for one in found), inf if None in most else mean(most))

    names = [field.name for field in fields(Rates) if field.name != "threads"]
    return Rates(threads=found[0]["threads"], **{name: rate(name) for name in names})


@dataclass(frozen=True)
class Scaled:
    """A round of the large model in so much shorter time, of so many small payloads."""

    large: Plan
    miners: int
    payload_bytes: int
    times: float
    """Length of something in the small round over that in the large one."""

    @property
    def block_seconds(self) -> float:
        return self.large.spec.clock.block_seconds * self.times

    def links(self) -> dict[str, Link]:
        """Of each role: its payloads take as long as those of the large one, scaled."""
        others, gathered = self.large.sizes.contributors - 1, self.large.setting.gathered_first
        copied = self.large.setting.copied_payloads
        up, down = self.large.rates.up, self.large.rates.down
        return {
            "miner": Link(self._mbps(1, 1, up), self._mbps(self.miners - 1, others, down)),
            "validator": Link(self._mbps(self.miners, copied, up), self._mbps(self.miners, gathered, down)),
        }

    def _mbps(self, payloads: float, large_payloads: float, rate: Rate) -> float:
        seconds = rate.seconds(large_payloads * self.large.payload_bytes, 1) * self.times
        return 8e-6 * payloads * self.payload_bytes / seconds


def call_rate(network: Network) -> Rate:
    """Exchanges a second with the network's chain."""
    chain = open_chain(network.devnet.url, NETUID, None, call_timeout_seconds=CALL_SECONDS)
    try:
        taken = []
        for _ in range(CALLS):
            began = time.perf_counter()
            chain.peers(chain.finalized().block)
            taken.append((time.perf_counter() - began) / 2)
    finally:
        chain.close()
    return Rate(1 / median(taken), 1 / median(taken))


@dataclass(frozen=True)
class Round:
    """One miner's round as its events tell it: seconds from the end of the one before, of each phase, and from its
    commitment to block D; whether every miner contributed."""

    miner: str
    round: int
    seconds: float
    phases: Mapping[str, float]
    margin: float
    contributed: bool

    def spent(self, name: str) -> float:
        """On a phase of the plan."""
        return sum(self.phases.get(phase, 0.0) for phase in PHASES[name][1])


def give_way(network: Network) -> None:
    """Lower the validators' priority: on machines of their own, they would not slow the miners down."""
    for member in network.honest:
        if member.role == "validator":
            process = network.processes.children[member.name].process
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), os.getpriority(os.PRIO_PROCESS, 0) + LOWER)


def rounds_of(network: Network, member: LocalNode, numbers: Iterable[int]) -> Iterable[Round]:
    """Those of `numbers` that it trained for and followed."""
    clock, events = network.spec.rounds_clock, network.events(member)
    of = {(event["event"], event["round"]): event for event in events}
    for number in numbers:
        told = (("applied", number - 1), ("trained", number), ("applied", number), ("phases", number))
        if any(one not in of for one in told):
            continue
        before, applied = of[told[0]], of[told[2]]
        phases: dict[str, float] = {}
        for phase in of["phases", number]["phases"]:
            phases[phase["phase"]] = phases.get(phase["phase"], 0.0) + phase["seconds"]
        # A round begins before the one before is applied: its first steps are among that one's phases.
        phases["compute"] = of["trained", number]["seconds"]["compute"]
        committed = of.get(("committed", number), {"block": clock.commit_deadline(number) + 1})
        yield Round(
            member.name,
            number,
            applied["time"] - before["time"],
            phases,
            (clock.commit_deadline(number) - committed["block"]) * network.plan.block_seconds,
            len(applied["contributing"]) == network.plan.miners,
        )


def planned(plan: Plan) -> dict[str, Any]:
    """What a miner's plan says of what is measured."""
    timed = {phase.phase.name: phase for phase in plan.timeline("miner")}
    phases = {name: sum(timed[one].seconds for one in ours) for name, (ours, _) in PHASES.items()}
    return {
        "utilization": plan.utilization,
        "beside_transfers": beside_transfers(phases),
        "margin_seconds": plan.round_seconds - timed["commit"].ends,
        "phases": phases,
    }


def beside_transfers(phases: Mapping[str, float]) -> float:
    return phases[COMPUTE] / (phases[COMPUTE] + phases[UPLOAD] + phases[DOWNLOAD])


def seen(rounds: Sequence[Round]) -> dict[str, Any]:
    """The same of the network: medians over miners and rounds."""
    if not rounds:
        raise SystemExit("no miner has trained for a round that counts and followed it: see the logs of --folder")
    spent = [{name: one.spent(name) for name in PHASES} for one in rounds]
    return {
        "utilization": median(one.spent(COMPUTE) / one.seconds for one in rounds),
        "beside_transfers": median(map(beside_transfers, spent)),
        "margin_seconds": median(one.margin for one in rounds),
        "phases": {name: median(phases[name] for phases in spent) for name in PHASES},
        "rounds": [
            {
                "miner": one.miner,
                "round": one.round,
                "seconds": round(one.seconds, 3),
                "compute": round(one.spent(COMPUTE), 3),
                "utilization": round(one.spent(COMPUTE) / one.seconds, 4),
                "margin_seconds": round(one.margin, 3),
                "contributed": one.contributed,
            }
            for one in rounds
        ],
    }


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure the machine, plan, play the rounds, and compare."""
    path = folder / "scaled.toml"
    path.write_text(to_toml(small(options.miners, 1, options.spare)))
    say(f"measuring this machine, {options.miners} processes at once")
    rates = measured_rates(path, options.miners)
    one_step = Plan(presets.read(str(path)).first, 1, 0, rates, on_gpu=False).compute_seconds
    path.write_text(to_toml(small(options.miners, max(1, round(options.compute / one_step)), options.spare)))
    spec = presets.read(str(path)).first
    if spec.object_bytes <= RESUMED_BYTES:
        raise SystemExit(f"a payload of {spec.object_bytes} bytes is not resumed: over {RESUMED_BYTES} are needed")
    large = Plan(presets.read(MODEL).first, 8, 0)
    compute = Plan(spec, 1, 0, rates, on_gpu=False).compute_seconds
    scaled = Scaled(large, options.miners, spec.object_bytes, compute / large.compute_seconds)
    links = scaled.links()
    say(f"{spec.inner.steps} inner steps take {compute:.1f} s by plan; a block {scaled.block_seconds:.3f} s; {links}")
    setup = Setup(
        folder / "run",
        rounds=options.rounds,
        miners=options.miners,
        preset=str(path),
        block_seconds=scaled.block_seconds,
        links=links,
    )
    table = Table(sys.stderr)
    network = open_network(setup, table.say)
    try:
        give_way(network)
        rates = replace(rates, call=call_rate(network))
        table.follow(network, STALL_ROUNDS)
        early, rounds = (
            [one for member in network.miners for one in rounds_of(network, member, numbers)]
            for numbers in (range(1, SKIPPED), range(SKIPPED, options.rounds))
        )
    finally:
        network.close()
    if not early:
        raise SystemExit("no miner has trained for round 1 or 2 and followed it: see the logs of --folder")
    slower = mean(one.spent(COMPUTE) for one in early) / compute
    rates = replace(rates, compute=Rate(rates.compute.one / slower, rates.compute.most / slower))
    plans = {role: the_plan(network.spec, rates, links, role) for role in ROLES}
    return {
        "hardware": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}",
        "times": scaled.times,
        "block_seconds": scaled.block_seconds,
        "links_mbps": {role: [one.up_mbps, one.down_mbps] for role, one in links.items()},
        "payload_bytes": spec.object_bytes,
        "slower_than_the_trial": slower,
        "large": planned(replace(large, has_data=True)) | {"refused": len(large.missed)},
        "refused": [
            missed.deadline.does for role in ROLES for missed in plans[role].missed if missed.deadline.role == role
        ],
        "planned": planned(plans["miner"]),
        "measured": seen(rounds),
        "whole": len(rounds) == options.miners * (options.rounds - SKIPPED) and all(one.contributed for one in rounds),
    }


def the_plan(spec: RunSpec, rates: Rates, links: Mapping[str, Link], role: str) -> Plan:
    """As `murmur plan --with-data --validators 1` makes it, where the one that decides has a link of its own."""
    there = {name: replace(rates, up=link(of.up_mbps), down=link(of.down_mbps)) for name, of in links.items()}
    return Plan(spec, 1, 0, there[role], on_gpu=False, validators=1, has_data=True, voters=there["validator"])


def told(result: Mapping[str, Any]) -> str:
    """For people."""
    of = {name: result[name] for name in ("large", "planned", "measured")}
    rows = [f"{'':<24}{'72B':>10}{'planned':>10}{'measured':>10}"]
    for name, words in (("utilization", "of the whole round"), ("beside_transfers", "beside transfers")):
        rows.append(f"{words:<24}" + "".join(f"{one[name]:>10.1%}" for one in of.values()))
    seconds = {"before block D": [one["margin_seconds"] for one in of.values()]}
    seconds |= {name: [one["phases"][name] for one in of.values()] for name in PHASES}
    for name, (of_72b, *ours) in seconds.items():
        rows.append(f"{name + ', s':<24}" + "".join(f"{one:>10.2f}" for one in (of_72b * result["times"], *ours)))
    rows.append(f"(72B: seconds times {result['times']:.5f}; {result['hardware']})")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--miners", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="the first three do not count (default %(default)s)")
    parser.add_argument("--compute", type=float, default=30.0, help="seconds of inner steps (default %(default)s)")
    parser.add_argument(
        "--spare",
        type=int,
        default=20,
        metavar="BLOCKS",
        help="more of the windows before D and V (default %(default)s)",
    )
    parser.add_argument("--folder", type=Path, help="keep the run there (default: nowhere)")
    parser.add_argument("--json", action="store_true", help="one line, for machines, in place of a table")
    options = parser.parse_args()
    if options.miners < 2 or options.rounds <= SKIPPED:
        parser.error("two miners and four rounds are the least that says anything")
    with tempfile.TemporaryDirectory(prefix="bench-links-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result = compare(options, folder)
    apart = [
        100 * abs(result["measured"][name] - result["planned"][name]) for name in ("utilization", "beside_transfers")
    ]
    result |= {"points_apart": max(apart), "within": max(apart) <= POINTS and result["whole"]}
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        counted = "every miner contributed" if result["whole"] else "NOT EVERY MINER CONTRIBUTED"
        sys.stdout.write(f"{told(result)}\n{max(apart):.1f} points apart, {POINTS:g} are allowed; {counted}\n")
    return 0 if result["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
