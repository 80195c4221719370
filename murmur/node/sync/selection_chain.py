"""The agreed selections that lead to a state, walked back along their links (docs/protocol.md section 8)."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from loguru import logger

from murmur.node.chain.follower import QUIET_SECONDS
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.protocol import keys
from murmur.protocol.errors import InvalidMessage, OutOfSync, StorageError
from murmur.protocol.messages import SELECTION_MAX_BYTES, first_link, parse_selection
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest, PeerId, Selection
from storage.collect import first
from storage.exchange import Data, Wanted

ASK_SECONDS = 30.0
LINK_SECONDS = 1.0
"""Average time limit for each link of a walk, in addition to ASK_SECONDS."""

Tell = Callable[[int, int], None]
"""tell(round of the selection that was read, number read so far)."""


class SelectionChain:
    """The agreed selections of a run, back from `link`, which is `previous` of the selection agreed in round `below`.
    They are read as far as the caller asks. Each is authenticated by the one after it, so any copy will do: all
    validators are asked concurrently, except for those in `known`, by link. `tell` is called for each that was read;
    without it progress is logged now and then."""

    def __init__(
        self,
        run: Digest,
        sources: Sources,
        link: Digest,
        below: int,
        time: Time,
        tell: Tell | None = None,
        known: Mapping[Digest, Selection] | None = None,
    ) -> None:
        self._run, self._sources, self._link, self._time = run, sources, link, time
        self._known = known or {}
        self._round = self._below = below
        self._links: list[Selection] = []
        """The newest first."""
        self._ended = False
        """Whether no source gives us more."""
        self._giver: PeerId | None = None
        """The source of the last one; first asked alone for the next."""
        self._began = self._told = time.now()
        self._tell: Tell = self._log if tell is None else tell

    def round_of(self, steps: Sequence[Selection]) -> int:
        """Return the round of a state from which these selections lead on."""
        return steps[0].round if steps else self._round

    def back(self) -> Iterator[tuple[Digest, Selection]]:
        """Yield every selection with its link, newest first, to the run's first. Raises StorageError if no source has
        the next one, OutOfSync if it cannot be of this run."""
        link, depth = self._link, 0
        while link != first_link(self._run):
            selection = self._at(depth, link)
            yield link, selection
            link, depth = selection.previous, depth + 1

    def links(self) -> Iterator[tuple[Digest, list[Selection]]]:
        """Yield every link on the way back, from the given one to the run's first, with the selections after it, the
        oldest first. Ends early if no source has the next one, or if it cannot be of this run."""
        link, depth = self._link, 0
        while True:
            yield link, self._links[:depth][::-1]
            if link == first_link(self._run):
                return
            if self._ended and depth == len(self._links):
                return
            try:
                link, depth = self._at(depth, link).previous, depth + 1
            except (StorageError, OutOfSync) as fault:
                self._ended = True
                logger.warning("the agreed selections cannot be followed further back: {fault}", fault=str(fault))
                return

    def _at(self, depth: int, link: Digest) -> Selection:
        if depth == len(self._links):
            self._links.append(self._read(link))
            self._tell(self._below, depth + 1)
        return self._links[depth]

    def _read(self, link: Digest) -> Selection:
        left = self._began + ASK_SECONDS + LINK_SECONDS * len(self._links) - self._time.now()
        if left <= 0:
            raise StorageError(f"only {len(self._links)} agreed selections could be fetched in time")
        found = self._known.get(link) or self._ask(link, left)
        if found.round >= self._below:
            raise OutOfSync(f"the chain of selections does not lead back: round {found.round} before {self._below}")
        self._below = found.round
        return found

    def _log(self, round: int, count: int) -> None:
        if self._time.now() - self._told > QUIET_SECONDS:
            self._told = self._time.now()
            told = "catching up: reading the agreed selections back, at round {round}, {count} so far"
            logger.info(told, round=round, count=count)

    def _ask(self, link: Digest, left: float) -> Selection:
        """Return the selection under this link, from the source that gives it first."""
        key, validators = keys.selection(self._run, link), self._sources.validators()
        rest = [holder for holder in validators if holder != self._giver]
        for holders in ([self._giver] if self._giver is not None else [], rest):
            found = first(
                [
                    Wanted(
                        holder, self._sources.own(holder, key), SELECTION_MAX_BYTES, _is_selection(link), exact=False
                    )
                    for holder in holders
                ],
                timeout_seconds=left if holders is rest else min(left, QUIET_SECONDS),
                max_threads=FETCH_THREADS,
                time=self._time,
            )
            if found is not None:
                self._giver = found[0]
                return parse_selection(bytes(found[1]), link)
        raise StorageError(
            f"the agreed selection {link.hex()[:16]} before round {self._below} is in none of {len(validators)} "
            "validators' buckets"
        )


def _is_selection(link: Digest) -> Callable[[Data], bool]:
    def check(data: Data) -> bool:
        try:
            parse_selection(bytes(data), link)
        except InvalidMessage:
            return False
        return True

    return check
