"""Verified work: a validator repeats a drawn miner's inner steps, and compares them with the trace that it sealed.

Where rounds begin without optimizer state, whoever has theta and the pages can repeat a miner's steps. Honest
executions differ by rounding alone; work that was not done differs by far more in single steps (docs/protocol.md
section 9). What a miner shows is what it is paid for: its declared steps as a share of the round's.
"""

from itertools import accumulate

import numpy as np

from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.remembered import Twins
from gauntlet.repetition import NOTHING_ALIKE, Repetition
from gauntlet.selection import Ranking
from murmur.protocol.assignment import Draw
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, PeerId
from sparseloco.trace import Trace, Values

FAMILIAR, FASTER = 4, 4
"""A hotkey of the opening rounds is `FASTER` times as likely to be drawn for each repetition that it lacks of
`FAMILIAR`: what is known of the miners' work becomes alike soon, and so does their pay. Later ones are not: whoever
worked as a newcomer alone would be paid for long before it is drawn again."""
DIGITS = 4


def draw(
    run: Digest,
    block_hash: Digest,
    round: int,
    validator: PeerId,
    ranking: Ranking,
    twins: Twins,
    book: ScoreBook,
    rules: GauntletSpec,
) -> list[PeerId]:
    """Draw whose steps of the round a validator repeats, each once and in this order. block_hash: of a block after the
    vote deadline, so that nobody knows it while work can still be changed. ranking, twins: of the round. book: after
    it. Contributors and reserve are drawn from, and twins of theirs: who is left out as a twin counts as present."""
    stream, placed = Draw("verify", run, block_hash, round, validator), {*ranking.contributing, *ranking.reserve}
    candidates = placed | {peer for peer, others in twins.items() if others & placed}
    left = {peer: FASTER ** _lacks(book.peers.get(peer), rules) for peer in sorted(candidates)}
    drawn: list[PeerId] = []
    while left and len(drawn) < rules.verifications:
        point = stream.below(sum(left.values()))
        ends = zip(left, accumulate(left.values()), strict=True)
        peer = next(peer for peer, end in ends if point < end)
        del left[peer]
        drawn.append(peer)
    return drawn


def _lacks(record: PeerRecord | None, rules: GauntletSpec) -> int:
    if record is None or record.first_seen >= rules.opening_rounds:
        return 0
    return max(0, FAMILIAR - record.repeated)


def compare(round: int, steps: int, shown: Trace, own: Trace) -> Repetition:
    """Return what our own execution says of the trace that a miner has sealed. steps: of the round."""
    return Repetition(
        round,
        steps,
        shown.steps,
        _distances(shown.moves, own.moves),
        _distances(shown.gradients, own.gradients),
    )


def _distances(shown: Values, own: Values) -> tuple[float, ...]:
    """Return |shown - own| / |own| of each step, rounded as reports state them. Where ours is nothing, anything is far
    from it."""
    apart = np.linalg.norm((shown - own).astype(np.float64), axis=1)
    size = np.linalg.norm(own.astype(np.float64), axis=1)
    far = np.where(apart == 0.0, 0.0, NOTHING_ALIKE)
    relative = np.divide(apart, size, out=far, where=size > 0.0)
    return tuple(round(float(value), DIGITS) for value in np.minimum(relative, NOTHING_ALIKE))
