"""What lies behind a state: the pairs that validators claimed on the way to it, back along the agreed records.

Who comes back after an absence has to tell the run from what a minority says of it. Two questions help, both of what
stands on chain: what most of the stake said last lies behind a true claim (`lies_behind`), and what more than half of
the stake has gone through, a majority with an honest validator in it has held (`common_ground`). Why, and what neither
can tell: docs/decisions/0054-what-outlasts-who-left.md.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice

from gauntlet.agreement import LAST_WORDS_ROUNDS, Claim, last_words
from node.follower import Follower
from node.held import Held
from node.records import Records
from protocol.messages import first_link

LINKS_WALKED = LAST_WORDS_ROUNDS + 2


def way_back(claim: Claim, records: Records) -> Iterator[Claim]:
    """This claim, and the pairs that the records before it started from, the newest first; at most LINKS_WALKED. Ends
    early where nobody has the next record. The first pair is as claimed; the others are in the records."""
    for link, steps in islice(records.links(), LINKS_WALKED):
        yield (steps[0].record.theta, link) if steps else claim


def lies_behind(last: Sequence[tuple[Claim, int]], way: Iterable[Claim], share: Fraction = Fraction(1, 2)) -> bool:
    """Whether more than this share of what was said last (gauntlet.agreement.last_words) is on this way back; true
    where nobody has said anything."""
    total, behind = sum(stake for _, stake in last), 0
    for pair in way:
        behind += sum(stake for said, stake in last if said == pair)
        if behind > share * total:
            return True
    return not total


def holds_last_words(follower: Follower, held: Held, round: int) -> bool:
    """Whether what we hold comes after what most of the stake said last, as of X of `round`. theta_0, which comes
    before everything, speaks for nothing that came later."""
    peers = follower.doors.chain.peers(follower.clock.attest_by(round))
    records = Records(follower.run.id, follower.sources(), held.saved.link, held.saved.round, follower.time)
    start = first_link(follower.run.id)
    way = (pair for pair in way_back(held.claim, records) if pair[1] != start or pair == held.claim)
    return lies_behind(last_words(follower.run, round - LAST_WORDS_ROUNDS, peers), way)


def more_than(share: Fraction, of: int, words: Iterable[tuple[Claim, int]], counts: Callable[[Claim], bool]) -> bool:
    """Whether the words that count have more than this share of `of`. Asked by stake and only until that is decided:
    dust costs nobody a walk."""
    by_stake = sorted(words, key=lambda word: (-word[1], word[0]))
    found, left = 0, sum(stake for _, stake in by_stake)
    for claim, stake in by_stake:
        if found > share * of or found + left <= share * of:
            break
        found, left = found + (stake if counts(claim) else 0), left - stake
    return found > share * of


def common_ground(words: Sequence[tuple[Claim, int]], way_of: Callable[[Claim], Sequence[Claim]]) -> Claim | None:
    """The newest pair that more than half of the stake has gone through, by these last words; None where there is none.
    The ways back are asked for by stake, no more of them than can change the answer: dust costs nobody a walk."""
    total = left = sum(stake for _, stake in words)
    through: dict[Claim, int] = {}
    ways: list[Sequence[Claim]] = []
    found: Claim | None = None
    for claim, stake in sorted(words, key=lambda word: (-word[1], word[0])):
        later = {pair for way in ways for pair in way[: way.index(found) if found in way else len(way)]}
        if 2 * (max((through[pair] for pair in later), default=0) + left) <= total:
            break
        ways.append(way_of(claim))
        left -= stake
        for pair in ways[-1]:
            through[pair] = through.get(pair, 0) + stake
        # Of two pairs that more than half has gone through one lies behind the other: some claim has gone through both.
        for way in ways:
            if found is None or found in way:
                found = next((pair for pair in way if 2 * through[pair] > total), found)
    return found
