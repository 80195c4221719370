"""A run's rounds, as its nodes' events come in, and as JSON for who asks."""

import json
from collections.abc import Iterator
from typing import Any

from murmur.page.encode import encode
from murmur.page.round import Event, Round
from murmur.page.round_events import KINDS, MAX_ROUND, fold
from murmur.page.short import Places, shortened


class Rounds:
    """All of them. `version` grows with every change; `hotkeys`: name of a node -> its hotkey, or its id in a
    cluster, where known."""

    def __init__(self) -> None:
        self.version = 0
        self.hotkeys: dict[str, str] = {}
        self.peers = Places()
        self.last_seen: dict[str, tuple[int, float]] = {}
        """Validator -> round and time of the last vote or report that is known of it."""
        self._rounds: dict[int, Round] = {}
        self._by_change: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[Round]:
        """By number."""
        return (self._rounds[number] for number in sorted(self._rounds))

    def get(self, number: int) -> Round | None:
        return self._rounds.get(number)

    def newest(self, count: int) -> list[Round]:
        """The last decided rounds, oldest first."""
        return [one for one in self if one.decided][-count:]

    def keep(self, count: int) -> None:
        """Forget all but the `count` newest by number."""
        for number in sorted(self._rounds)[: max(0, len(self._rounds) - count)]:
            del self._rounds[number], self._by_change[number]

    def take(self, node: str, event: Event, place: int = 0) -> None:
        """Fold one event of the node; one of another kind or form is passed over."""
        try:
            kind, number = event["event"], event["round"]
            if kind not in KINDS or type(number) is not int or not 0 <= number < MAX_ROUND:
                return
            one = self._rounds.get(number) or Round(number)
            fold(one, node, kind, event)
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        one.places[node, kind] = place
        self.version += 1
        one.version = self.version
        one.encoded.clear()
        if kind in ("word_posted", "reported"):
            self.last_seen[node] = max((number, float(event["time"])), self.last_seen.get(node, (0, 0.0)))
        self._rounds[number] = one
        self._by_change.pop(number, None)
        self._by_change[number] = None

    def body(self, one: Round) -> dict[str, Any]:
        """One of them as JSON."""
        return encode(one, self.hotkeys)

    def since(self, version: int, max_bytes: int, *, short: bool = False) -> tuple[list[bytes], int, bool]:
        """JSON of the rounds that have changed after `version`, those first that changed first, up to about `max_bytes`
        and at least one, sorted by number; the version to ask with next, and whether there is more. `short`: as
        murmur/page/short.py has it."""
        changed = []
        for number in reversed(self._by_change):
            if self._rounds[number].version <= version:
                break
            changed.append(self._rounds[number])
        told: list[Round] = []
        size = 0
        more = False
        for one in reversed(changed):
            if more := size >= max_bytes:
                break
            size += len(self._encode(one, short))
            told.append(one)
            version = one.version
        return [one.encoded[short] for one in sorted(told, key=lambda one: one.number)], version, more

    def encode(self) -> None:
        """Make the page's JSON of what has changed now, not when somebody asks."""
        for number in reversed(self._by_change):
            if True in self._rounds[number].encoded:
                break
            self._encode(self._rounds[number], short=True)

    def _encode(self, one: Round, short: bool) -> bytes:
        if short not in one.encoded:
            body = self.body(one)
            told = shortened(body, self.peers) if short else body
            one.encoded[short] = json.dumps(told, separators=(",", ":"), allow_nan=False).encode()
        return one.encoded[short]
