"""Draw the evaluated peers, their references and their data (docs/protocol.md section 9). The draw uses the hash of the
first block after the reveal deadline, so that it is unknown while a key can still be withheld. It also uses the
validator's hotkey, so that two validators look at different data."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from gauntlet.book import PeerRecord, ScoreBook, in_doubt
from gauntlet.evaluation import Samples
from gauntlet.remembered import NO_TWINS, Twins
from murmur.protocol.assignment import Draw, assigned, page_at
from murmur.protocol.spec import GauntletSpec, RunSpec
from murmur.protocol.types import Digest, Page, PeerId

ENOUGH_REFERENCES = 2


@dataclass(frozen=True, slots=True)
class Seed:
    """Everything that a draw of one validator's round depends on."""

    run: Digest
    sample_hash: Digest
    round: int
    validator: PeerId

    def draw(self, label: str, *parts: bytes | int) -> Draw:
        return Draw(label, self.run, self.sample_hash, self.round, self.validator, *parts)


def pick(
    book: ScoreBook,
    passed: Collection[PeerId],
    contributing: Collection[PeerId],
    spec: GauntletSpec,
    seed: Seed,
    twins: Twins = NO_TWINS,
) -> tuple[PeerId, ...]:
    """Return at most `evaluations` passing peers, sorted; all of them if they fit.

    Of the contributors ceil(contributor_share * number) are drawn, so each has at least that probability. The other
    places are drawn among all the rest; a peer is the more likely the longer it was not evaluated. Half of them go
    first to peers in doubt: an honest peer that looked bad once is soon evaluated again, and so are twins, to see which
    did the work. Once 2G peers are rated, peers never evaluated get at most a quarter of the places, so that a flood of
    them displaces no one.
    """
    if len(passed) <= spec.evaluations:
        return tuple(sorted(passed))
    draw = seed.draw("evaluate")
    regulars = sorted(set(contributing) & set(passed))
    picked = draw.sample(regulars, min(spec.evaluations, ceil(spec.contributor_share * len(regulars))))
    rest = set(passed) - set(picked)
    doubtful = {p for p in rest if p in twins or ((record := book.peers.get(p)) is not None and in_doubt(record, spec))}
    picked += _drawn(book, doubtful, (spec.evaluations - len(picked)) // 2, 0, draw, seed.round)
    rated = sum(record.evaluations > 0 for record in book.peers.values())
    newcomers = max(1, spec.evaluations // 4) if rated >= 2 * spec.contributors else spec.evaluations
    picked += _drawn(book, rest - set(picked), spec.evaluations - len(picked), newcomers, draw, seed.round)
    return tuple(sorted(picked))


def _drawn(
    book: ScoreBook, peers: Collection[PeerId], places: int, newcomers: int, draw: Draw, round: int
) -> list[PeerId]:
    """Draw at most `places` peers, at most `newcomers` of them never evaluated, weighted by the rounds since their last
    evaluation."""
    rest, picked = sorted(peers), list[PeerId]()
    while rest and len(picked) < places:
        weights = [_weight(book.peers.get(peer), round) for peer in rest]
        point = draw.below(sum(weights))
        index = 0
        while point >= weights[index]:
            point -= weights[index]
            index += 1
        peer = rest.pop(index)
        picked.append(peer)
        if _is_new(book.peers.get(peer)):
            newcomers -= 1
            if not newcomers:
                rest = [other for other in rest if not _is_new(book.peers.get(other))]
    return picked


def references(
    picked: Iterable[PeerId],
    passed: Collection[PeerId],
    contributing: Collection[PeerId],
    spec: GauntletSpec,
    seed: Seed,
    twins: Twins = NO_TWINS,
) -> dict[PeerId, tuple[PeerId, ...]]:
    """Return at most `references` reference peers for each picked peer, none of them its twin, drawn among the
    contributors. Other peers are used only if there are fewer than two contributors: against a peer that learned
    nothing the difficulty of a page does not cancel."""
    regulars = sorted(set(contributing) & set(passed))
    others = sorted(set(passed) - set(contributing))
    chosen: dict[PeerId, tuple[PeerId, ...]] = {}
    for peer in picked:
        draw, same = seed.draw("reference", peer), {peer, *twins.get(peer, ())}
        order = [other for other in draw.sample(regulars, len(regulars)) if other not in same]
        if len(order) < ENOUGH_REFERENCES:
            order += [other for other in draw.sample(others, len(others)) if other not in same]
            order = order[:ENOUGH_REFERENCES]
        chosen[peer] = tuple(order[: spec.references])
    return chosen


def samples(
    spec: RunSpec, page_hash: Digest, picked: Iterable[PeerId], peers: Collection[PeerId], seed: Seed
) -> Samples:
    """Return `sample_sequences` sequences of each kind. `page_hash` is the hash of the round's page block; `peers` all
    hotkeys whose pages count as assigned.

    If too few pages are unassigned, pages assigned to the fewest peers serve as unassigned.
    """
    pages = {peer: _pages(spec, seed.run, page_hash, peer) for peer in sorted({*peers, *picked})}
    times = Counter(page.first for own in pages.values() for page in own)
    draw = seed.draw("unassigned")
    count = spec.gauntlet.sample_sequences
    indices = draw.distinct(spec.num_pages, min(spec.num_pages, count + len(times)))
    drawn = (page_at(spec.inner.first_page + index, spec.page_tokens) for index in indices)
    nobodys = sorted(drawn, key=lambda page: times[page.first])
    return Samples(
        {peer: _sequences(pages[peer], spec, seed.draw("assigned", peer)) for peer in sorted(picked)},
        _scattered(nobodys[:count], spec, draw),
    )


def _scattered(pages: Sequence[Page], spec: RunSpec, draw: Draw) -> tuple[Page, ...]:
    """Return `sample_sequences` sequences over as many pages as there are. Text from one place would favour peers whose
    own pages happen to resemble it (docs/decisions/0007-scattered-unassigned-samples.md)."""
    context, count = spec.model.context, spec.gauntlet.sample_sequences
    each = -(-count // len(pages))
    firsts: list[int] = []
    for page in pages:
        starts = range(page.first, page.first + page.num_tokens, context)
        firsts += draw.sample(starts, min(each, count - len(firsts)))
    return tuple(Page(first, context) for first in sorted(firsts))


def _pages(spec: RunSpec, run: Digest, page_hash: Digest, peer: PeerId) -> tuple[Page, ...]:
    return assigned(
        run,
        page_hash,
        peer,
        num_pages=spec.num_pages,
        page_tokens=spec.page_tokens,
        count=spec.pages_per_round,
        first_page=spec.inner.first_page,
    )


def _sequences(pages: Iterable[Page], spec: RunSpec, draw: Draw) -> tuple[Page, ...]:
    """Return distinct sequences of the pages that a peer really trains on: the last page of a round may be used in
    part."""
    context = spec.model.context
    firsts = [page.first + at * context for page in pages for at in range(page.num_tokens // context)]
    trained = firsts[: spec.inner.steps * spec.inner.sequences]
    return tuple(Page(first, context) for first in sorted(draw.sample(trained, spec.gauntlet.sample_sequences)))


def _is_new(record: PeerRecord | None) -> bool:
    return record is None or record.evaluations == 0


def _weight(record: PeerRecord | None, round: int) -> int:
    """Return the rounds since the last evaluation; a peer never evaluated counts from the round that first saw it."""
    if record is None:
        return 1
    since = record.first_seen if record.last_evaluated is None else record.last_evaluated
    return max(1, round - since)
