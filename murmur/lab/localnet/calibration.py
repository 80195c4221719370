"""The windows of a round from measured seconds: a multiple of the 95th percentile of the work in each.

The network's own processes measure the seconds, all running concurrently (murmur/lab/localnet/worker.py), so the clock
fits the machine as it is, slow or busy. Source: docs/protocol.md section 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from murmur.protocol.spec import POSTS_PER_EPOCH
from murmur.protocol.types import Subnet

MARGIN = 4.0
"""Of windows whose work takes well under a second: whatever else the machine does is long beside it."""
WORK_MARGIN = 2.4
"""Of a miner's whole work. It was measured while all processes computed, as they do in a round, and takes seconds. So
only a machine that gets more than twice as slow makes a miner late."""
MIN_BLOCKS = 4
HICCUP_SECONDS = 4.0
"""Least length of the reveal window. Its work takes milliseconds, so four times that means little. A loaded machine
stalls a process for a second or two now and then, and an honest miner would count as UNREVEALED."""

FINISH_MARGIN = 1.0
"""Scoring is on no critical path; it only has to end before the next round's commitments are read. It was measured with
all processes at work concurrently, which takes three to four times as long as in a round."""


def percentile_95(samples: Sequence[float]) -> float:
    """Return the 95th percentile, rounded up to a sample; the maximum of fewer than 20 samples."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, ceil(0.95 * len(ordered)) - 1)]


def merge(measured: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return all processes' samples by phase."""
    phases: dict[str, list[float]] = {}
    for samples in measured:
        for phase, seconds in samples.items():
            phases.setdefault(phase, []).extend(seconds)
    return phases


def windows(phases: Mapping[str, Sequence[float]], block_seconds: float, subnet: Subnet) -> dict[str, int | float]:
    """Return the fields of ClockSpec, except start_block. A round is no shorter than the subnet's quota of posts
    allows.

    `phases`: seconds of advance (read the selection, gather, outer step, save), compute (inner steps, compress, seal,
    save), upload, commit (a chain post until it is in a block), reveal, check (gather, fast checks, mirror), evaluate.
    """
    longest = {phase: percentile_95(seconds) for phase, seconds in phases.items()}

    def blocks(*names: str, margin: float = MARGIN) -> int:
        return max(MIN_BLOCKS, ceil(margin * sum(longest[name] for name in names) / block_seconds))

    # From the commit deadline on. A miner has until the next commit deadline, since it trains from the result that it
    # expects.
    work = blocks("advance", "compute", "upload", "commit", margin=WORK_MARGIN)
    reveal = max(blocks("reveal"), blocks("check") // 2, ceil(HICCUP_SECONDS / block_seconds))
    votes = reveal + 2 * blocks("check", "commit")  # its vote, and the names that it adds
    scoring = reveal + blocks("evaluate", "advance", margin=FINISH_MARGIN)
    round_blocks = max(work, votes + 2, scoring, ceil(subnet.tempo / POSTS_PER_EPOCH))
    commit = round_blocks - 1 - votes
    return {
        "round_blocks": round_blocks,
        "commit": commit,
        "reveal": commit + reveal,
        "words": commit + votes,
        "tempo": subnet.tempo,
        "weights_rate_limit": subnet.weights_rate_limit,
        "block_seconds": block_seconds,
    }
