"""report.json of a local network: the result of every round, from the nodes' own events and the chain's weights."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from murmur.chain.adapter import open_chain
from murmur.lab.localnet.chaos_report import Aftermath
from murmur.lab.localnet.members import LocalNode, address
from murmur.lab.localnet.network import Network
from murmur.lab.localnet.plan import CALL_SECONDS, NETUID
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.types import hotkey
from murmur.training.sizes import FP32

Event = Mapping[str, Any]

PHASES = ("compute", "upload", "download", "apply")


def build_report(network: Network, wall_seconds: float) -> dict[str, Any]:
    """Return the report up to the network's current round; docs/local-network.md explains every field."""
    by_round = _by_round({name: network.events(member) for name, member in network.members.items()})
    rounds = [
        row
        for index in range(network.plan.rounds)
        if (row := round_report(network, by_round.get(index, {}), index)) is not None
    ]
    contributed = [peer for row in rounds for peer in row["contributing"]]
    weights = _weights(network)
    peers = {
        address(member): {
            "name": member.name,
            "fault": member.fault,
            "contributed": contributed.count(address(member)),
            "weight": weights.get(address(member), 0.0),
        }
        for member in network.miners
    }
    losses = [row["val_loss"] for row in rounds if row["val_loss"] is not None]
    shares = [row["utilization"] for row in rounds if row["utilization"] is not None]
    dense = FP32 * network.spec.layout.num_parameters
    return {
        "rounds": rounds,
        "peers": peers,
        "summary": {
            "loss_first": losses[0] if losses else None,
            "loss_last": losses[-1] if losses else None,
            "replicas_identical": all(len(set(row["theta"].values())) == 1 for row in rounds if row["theta"]),
            "faulty_contributions": sum(peer["contributed"] for peer in peers.values() if peer["fault"]),
            "honest_contributions": sum(peer["contributed"] for peer in peers.values() if not peer["fault"]),
            "void_rounds": sum(row["void"] for row in rounds),
            **network.paid(),
            "utilization": round(median(shares), 4) if shares else None,
            "payload_ratio": dense / network.spec.object_bytes,
            "wall_seconds": round(wall_seconds, 1),
        },
        "chaos": _chaos(network, rounds),
    }


def _chaos(network: Network, rounds: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the injections and their analysis; None without chaos."""
    if network.chaos is None or network.plan.chaos is None:
        return None
    aftermath = Aftermath(
        network.chaos.done,
        {member.name: member.role for member in network.honest},
        {address(member): member.name for member in network.honest},
        {member.name: network.events(member) for member in network.honest},
        {row["round"]: row["void"] for row in rounds},
    )
    ended = sum(child.ended_for_good for child in network.processes.children.values())
    return aftermath.body(network.plan.chaos, ended)


def _by_round(events: Mapping[str, Iterable[Event]]) -> dict[int, dict[str, list[Event]]]:
    """Return the input of `round_report`: round -> node -> its events. A catch-up is also listed under the round that
    it ends, and the end of a round also under the next one."""
    rounds: dict[int, dict[str, list[Event]]] = {}
    for name, found in events.items():
        for event in found:
            other = {"caught_up": (event["round"] - 1,), "applied": (event["round"] + 1,)}.get(event["event"], ())
            for index in (event["round"], *other):
                rounds.setdefault(index, {}).setdefault(name, []).append(event)
    return rounds


def round_report(network: Network, events: Mapping[str, Sequence[Event]], index: int) -> dict[str, Any] | None:
    """Return one round's row, None while no honest node has decided it. A round repeated after a restart has its events
    twice: the last ones count."""
    mine = {name: {e["event"]: e for e in events.get(name, ()) if e["round"] == index} for name in network.members}
    honest = [member.name for member in network.honest]
    applied = {name: mine[name]["applied"] for name in honest if "applied" in mine[name]}
    if not applied:
        return None
    theta = {name: event["theta"] for name, event in applied.items()}
    for name in honest:  # a node that caught up reports its theta at a later round's start
        for event in events.get(name, ()):
            if event["event"] == "caught_up" and event["round"] == index + 1:
                theta.setdefault(name, event["theta"])
    validators = [m.name for m in network.honest if m.role == "validator"]
    checked = _first(mine, validators, "checked")
    ranked = _first(mine, validators, "ranked")
    held_out = _first(mine, validators, "held_out")
    one = next(iter(applied.values()))
    return {
        "round": index,
        "val_loss": held_out.get("val_loss"),
        "active": checked.get("active", 0),
        "contributing": one["contributing"],
        "void": one["void"],
        "rejected": checked.get("rejected", {}),
        "standing": ranked.get("standing", {}),
        "theta": dict(sorted(theta.items())),
        "seconds": _seconds(network.honest, mine),
        "phases": _phases(network.honest, mine),
        "utilization": _utilization(network.honest, mine, events, index),
        "payload_bytes": network.spec.object_bytes,
    }


def _first(mine: Mapping[str, Mapping[str, Any]], names: Iterable[str], event: str) -> Mapping[str, Any]:
    found: Iterable[Mapping[str, Any]] = (mine[name][event] for name in names if event in mine[name])
    return next(iter(found), {})


def _seconds(honest: Iterable[LocalNode], mine: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the median over the honest miners of each phase's seconds."""
    samples: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for member in honest:
        if member.role == "miner":
            for event in mine[member.name].values():
                for phase, seconds in event.get("seconds", {}).items():
                    if phase in samples:
                        samples[phase].append(seconds)
    return {phase: round(median(seconds), 3) if seconds else None for phase, seconds in samples.items()}


def _phases(honest: Iterable[LocalNode], mine: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by role the median over its honest nodes of the seconds spent on each phase (docs/events.md)."""
    samples: dict[str, dict[str, list[float]]] = {}
    for member in honest:
        spent: dict[str, float] = {}
        for phase in mine[member.name].get("phases", {}).get("phases", ()):
            spent[phase["phase"]] = spent.get(phase["phase"], 0.0) + phase["seconds"]
        for name, seconds in spent.items():
            samples.setdefault(member.role, {}).setdefault(name, []).append(seconds)
    return {role: {name: round(median(found), 3) for name, found in of.items()} for role, of in samples.items()}


def _utilization(
    honest: Iterable[LocalNode],
    mine: Mapping[str, Mapping[str, Any]],
    events: Mapping[str, Sequence[Event]],
    index: int,
) -> float | None:
    """Return the median over the honest miners of their computing share of the time from the end of one round to that
    of the next."""
    shares = []
    for member in honest:
        began = [e["time"] for e in events.get(member.name, ()) if (e["event"], e["round"]) == ("applied", index - 1)]
        found = mine[member.name]
        if member.role == "miner" and began and {"trained", "applied"} <= found.keys():
            whole, computed = found["applied"]["time"] - began[-1], found["trained"]["seconds"]["compute"]
            if computed <= whole:  # else it was trained before a restart, or this machine's clock was set
                shares.append(computed / whole)
    return round(median(shares), 4) if shares else None


def _weights(network: Network) -> dict[str, float]:
    """Return each hotkey's share of the validators' weights on chain, averaged over the validators; empty when the
    chain does not answer (any more)."""
    try:
        chain = open_chain(network.devnet.url, NETUID, None, call_timeout_seconds=CALL_SECONDS)
    except (ChainError, ConfigError):
        return {}
    try:
        block = chain.finalized().block
        peers = chain.peers(block)
        rows = [chain.weights(block, peer.uid) for peer in peers if peer.validates]
    except ChainError:
        return {}
    finally:
        chain.close()
    rows = [row for row in rows if row]
    names = {peer.uid: hotkey(peer.id) for peer in peers}
    shares: dict[str, float] = {}
    for row in rows:
        for uid, weight in row.items():
            shares[names[uid]] = shares.get(names[uid], 0.0) + weight / sum(row.values()) / len(rows)
    return shares
