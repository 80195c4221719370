"""The run's health in one sentence: healthy, or what is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from murmur.node.telemetry.trouble import Trouble, sentence
from murmur.page.cluster import contributed, round_seconds, troubles
from murmur.page.encode import why_void
from murmur.page.round import Round
from murmur.page.source import PageSource, Stage
from murmur.protocol.spec import RunSpec

LATELY_ROUNDS = 5
SILENT_ROUNDS = 3.0
"""Planned time, in rounds, within which a healthy run makes progress."""
NODE_SILENT_ROUNDS = 2.0
"""The same for one node, as in `murmur status`."""
FALLBACK_SECONDS = 600.0
SLACK_SECONDS = 30.0
RISE = 0.05
"""Nats per token above its best at which a loss counts as rising."""

CAUSES_TOLD = 4
NAMED = 3
"""Nodes that are named of those with the same trouble."""
SENTENCE_CHARACTERS = 800

Told = tuple[str, str]
"""(`good`, `wrong` or `waiting`; the sentence)."""


def health(source: PageSource) -> Told:
    """Return the run's current health."""
    rounds, stage = source.rounds, source.stage()
    if stage.trouble is not None:
        return "wrong", stage.trouble
    lately = rounds.newest(LATELY_ROUNDS)
    if not lately:
        return _starting(source, stage)
    last = lately[-1]
    wrong = next(_wrong(source, lately, stage), None)
    if wrong is not None:
        return "wrong", wrong
    count = last.number + 1
    if stage.stopped and not stage.ended:
        told = f"Stopped on request after {count} round{'s' * (count != 1)}: {_round(last, source)}."
        return "waiting", f"{told} Started again, its nodes go on from there."
    done = f"Ended after {count} round{'s' * (count != 1)}" if stage.ended else "Healthy"
    return "good", f"{done}: {_round(last, source)}."


def _starting(source: PageSource, stage: Stage) -> Told:
    if stage.ended:
        return "wrong", "It ended before its first round: the files in logs/ say why."
    if stage.stopped:
        return "waiting", "Stopped on request before its first round was played."
    if stage.troubles:
        return "wrong", troubled(stage.troubles)
    if stage.waits_for is not None:
        return "waiting", stage.waits_for
    if stage.silent_seconds > _patience(source):
        return "wrong", f"No round was played, and nothing has happened for {_span(stage.silent_seconds)}."
    return "waiting", "Round 0 is being played."


def _wrong(source: PageSource, lately: list[Round], stage: Stage) -> Iterator[str]:
    """Yield the problems, the worst first."""
    rounds, last, cluster = source.rounds, lately[-1], source.cluster()
    for one in reversed(lately):
        node = one.agreed()
        counted = one.contributing.get(node, ()) if node is not None else ()
        theirs = [n for n in one.theta if n in one.active or rounds.hotkeys.get(n) in counted]
        if len({one.theta[node] for node in theirs}) > 1:
            yield f"Replicas differ in round {one.number}: {', '.join(sorted(theirs))} do not all hold the same model."
    if not (stage.ended or stage.stopped):
        nodes = (*stage.troubles, *(_silent(source, stage) if cluster is None else ()))
        if nodes:
            yield troubled(nodes)
        if stage.silent_seconds > _patience(source):
            span = _span(stage.silent_seconds)
            yield f"No round has gone on for {span}. The network was killed, or it is stuck."
    if last.void.get(last.agreed() or ""):
        yield f"Round {last.number} is void, so nobody's work was applied. {why_void(last)}"
    if last.unobserved:
        yield f"Round {last.number} was not observed by {sorted(last.unobserved)[0]}: nobody is rated or paid for it."
    if cluster is not None and not stage.ended:
        yield from troubles(cluster)
    for node, fault in sorted(last.faults.items()):
        counts = node in last.active or rounds.hotkeys.get(node) in last.contributing.get(last.agreed() or "", ())
        if counts or cluster is not None:
            yield f"Round {last.number}, {node}: {fault}."
    losses = [(min(one.held_out.values()), one.number) for one in rounds if one.held_out]
    best, when = min(losses, default=(inf, 0))
    if len(losses) > LATELY_ROUNDS and losses[-1][0] > best + RISE and when < losses[-1][1] - LATELY_ROUNDS:
        yield f"The held-out loss rises: {losses[-1][0]:.2f} now, {best:.2f} in round {when}."


def _silent(source: PageSource, stage: Stage) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield which nodes are silent beside others that are not: none says so itself. If all are, it is the network."""
    longest = _rounds_and_slack(source, NODE_SILENT_ROUNDS)
    silent = {node: seconds for node, seconds in stage.heard.items() if seconds > longest}
    if len(silent) < len(stage.heard):
        for node, seconds in silent.items():
            yield node, Trouble("silent", f"its last event is of {_span(seconds)} ago").fields()


def troubled(troubles: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return what keeps nodes from their work, a sentence for each cause, what most have first."""
    nodes: dict[str, list[str]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    for node, trouble in troubles:
        # Two nodes that can't start have each their own reason; of a halted chain each has other numbers.
        own = trouble["about"] == "process" and trouble["cause"] != "silent"
        cause = str(trouble["detail"] if own else trouble["cause"])
        nodes.setdefault(cause, []).append(node)
        first.setdefault(cause, trouble)
    told = []
    for cause in sorted(nodes, key=lambda cause: -len(nodes[cause]))[:CAUSES_TOLD]:
        who = nodes[cause]
        some = ", ".join(who[:NAMED]) + (f" and {len(who) - NAMED} more" if len(who) > NAMED else "")
        told.append(f"{some}: {sentence(first[cause])[:SENTENCE_CHARACTERS]}.")
    left = len(nodes) - len(told)
    return " ".join(told) + (f" And {left} more causes: murmur status names them." if left else "")


def _round(one: Round, source: PageSource) -> str:
    body, names = source.rounds.body(one), source.names
    if source.cluster() is not None:
        return contributed(body, names)
    rejected = {p: why for p, why in body["rejected"].items() if why != "MISSING"}
    said = f"{len(body['contributing'])} of {body['active'] or 0} contributed in round {one.number}"
    if len(rejected) == 1:
        [(peer, why)] = rejected.items()
        said += f", {names.get(peer, peer[:12])} was rejected ({why})"
    elif rejected:
        said += f", {len(rejected)} were rejected"
    if absent := len(body["rejected"]) - len(rejected):
        said += f", {absent} {'was' if absent == 1 else 'were'} absent"
    return said


def _patience(source: PageSource) -> float:
    return _rounds_and_slack(source, SILENT_ROUNDS)


def _rounds_and_slack(source: PageSource, count: float) -> float:
    return SLACK_SECONDS + count * (planned_seconds(source) or FALLBACK_SECONDS)


def planned_seconds(source: PageSource) -> float | None:
    """Return how long a round lasts: as planned, or in a cluster as usual; None while that is not known."""
    spec = source.spec
    if isinstance(spec, RunSpec):
        return spec.clock.round_blocks * spec.clock.block_seconds
    return round_seconds(source.rounds) if spec is not None else None


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
