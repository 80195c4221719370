"""Whether a validator saw enough of a round to judge its peers by it (docs/protocol.md section 9).

That bytes or a key could not be had is the reader's own observation: a validator that was stopped, whose link or store
was down, or that could not follow the rounds before sees what it would see if everybody were at fault. Such a round
teaches nothing about the peers, so nothing is folded and the weights on chain stay. It must not be a peer's to decide
that (docs/decisions/0026-not-observed.md).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gauntlet.book import ScoreBook, eligible
from protocol.clock import Clock
from protocol.spec import GauntletSpec
from protocol.types import PeerId, Reason

PATIENCE_ROUNDS = 8
"""So many rounds are passed over because peers were unreadable before what was seen counts all the same. Observed
rounds give them back slowly (gauntlet/book.py REGAINED), so hotkeys with most of the good standing can't live on it."""
KNOWN_NEEDED = 3
"""While fewer of those who committed are in good standing, only a round in which nobody at all was readable is passed
over."""
BLIND = (Reason.MISSING, Reason.UNREVEALED, Reason.OUT_OF_SYNC)
"""What somebody sees who reads nothing of a peer that committed, or whose own theta is another than everybody's."""


class Unobserved(StrEnum):
    """Why a round is passed over. LATE: the validator was not there when keys were to be read. APART: it could not
    follow a round before, so its theta may be its own alone. UNREADABLE: it could read too few, or found too few that
    start from its theta."""

    LATE = "late"
    APART = "apart"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Looked:
    """The finalised heads at which a validator began to read what the peers left, and at which it had read it."""

    began: int
    ended: int

    def is_late(self, clock: Clock, round: int) -> bool:
        """Begun in the second half of the reveal window, or ended more than one such window after V. The window is the
        measure: it is planned for the machines at hand. No peer can bring it about, reading ends at V."""
        opened, closed = clock.commit_by(round), clock.reveal_by(round)
        return 2 * (self.began - opened) > closed - opened or self.ended - closed > closed - opened


def is_unreadable(
    book: ScoreBook, committed: Collection[PeerId], outcomes: Mapping[PeerId, Reason | None], spec: GauntletSpec
) -> bool:
    """Whether too few of those who committed by D could be read, by the book before the round.

    `outcomes`: of everybody who was looked at, the reason of the fast checks, None for who passed. In good standing is
    who is eligible: that takes work, so hotkeys that commit and are silent count for nothing, however many they are.
    """
    known = {p for p in committed if (record := book.peers.get(p)) is not None and eligible(record, spec)}
    unread = {p for p in committed if p not in outcomes or outcomes[p] in BLIND}
    if len(known) >= KNOWN_NEEDED:
        blind = 2 * len(known & unread) > len(known)
    else:
        blind = bool(unread) and len(unread) == len(committed)
    return blind and book.unobserved + 1 <= PATIENCE_ROUNDS


def pass_over(book: ScoreBook, why: Unobserved) -> ScoreBook:
    """The book after a round that was not observed: as before, with a round less of patience where peers may have been
    the cause."""
    return replace(book, unobserved=book.unobserved + 1.0) if why is Unobserved.UNREADABLE else book
