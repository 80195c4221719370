"""Decide whether a validator saw enough of a round to judge its peers by it (docs/protocol.md section 9).

Bytes or a key that cannot be read are only the reader's own observation. After a stop, with its link or store down, or
if it could not follow the rounds before, a validator sees the same as if all peers were at fault. Such a round says
nothing about the peers, so nothing is folded and the weights on chain stay. A peer must not be able to cause that
(docs/decisions/0026-not-observed.md).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gauntlet.book import ScoreBook, eligible
from murmur.protocol.clock import Clock
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import PeerId, Reason

PATIENCE_ROUNDS = 8
"""After this many rounds passed over because peers were unreadable, the next such round counts. Observed rounds restore
this patience slowly (gauntlet/book.py REGAINED), so hotkeys that have most of the good standing cannot exploit it."""
KNOWN_NEEDED = 3
"""While fewer of the peers that committed are in good standing, a round is passed over only if no peer at all was
readable."""
BLIND = (Reason.MISSING, Reason.UNREVEALED, Reason.OUT_OF_SYNC)
"""Outcomes as seen by a validator that reads nothing of a peer that committed, or whose own theta differs from all
others'."""


class Unobserved(StrEnum):
    """Why a round is passed over. LATE: the validator was away when keys had to be read. APART: it could not follow an
    earlier round, so its theta may be its own alone. UNREADABLE: it could read too few, or found too few that start
    from its theta."""

    LATE = "late"
    APART = "apart"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Looked:
    """The finalised heads at which a validator began and finished reading the peers' objects."""

    began: int
    ended: int

    def is_late(self, clock: Clock, round: int) -> bool:
        """Whether reading began in the second half of the reveal window, or ended more than one such window after the
        reveal deadline. The window is the measure, since it is planned for the actual machines. No peer can cause it:
        reading ends at the reveal deadline."""
        opened, closed = clock.commit_deadline(round), clock.reveal_deadline(round)
        return 2 * (self.began - opened) > closed - opened or self.ended - closed > closed - opened


def is_unreadable(
    book: ScoreBook, committed: Collection[PeerId], outcomes: Mapping[PeerId, Reason | None], spec: GauntletSpec
) -> bool:
    """Whether too few of the peers that committed by the commit deadline could be read, by the book before the round.

    `outcomes`: for every peer that was looked at, the reason of the fast checks, None if it passed. Eligible peers are
    in good standing. That takes work, so hotkeys that commit and stay silent count for nothing, however many they are.
    """
    known = {p for p in committed if (record := book.peers.get(p)) is not None and eligible(record, spec)}
    unread = {p for p in committed if p not in outcomes or outcomes[p] in BLIND}
    if len(known) >= KNOWN_NEEDED:
        blind = 2 * len(known & unread) > len(known)
    else:
        blind = bool(unread) and len(unread) == len(committed)
    return blind and book.unobserved + 1 <= PATIENCE_ROUNDS


def pass_over(book: ScoreBook, why: Unobserved) -> ScoreBook:
    """Return the book after a round that was not observed: unchanged, with one round less of patience if peers may have
    been the cause."""
    return replace(book, unobserved=book.unobserved + 1.0) if why is Unobserved.UNREADABLE else book
