"""One object that several peers are said to have in one place: it is asked for once, and each peer is given what is its
own.

Any hotkey may point to any bucket: otherwise a crowd that points to one would multiply everybody's requests to it. It
does not matter who pointed there first, since the object says whose it is.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from murmur.protocol.errors import ConfigError
from murmur.protocol.types import PeerId
from storage.exchange import Data, FetchFault, Shelf, Source, Wanted, cached
from storage.resume import Opening, keep, remove

_ANOTHERS = FetchFault("mismatch", "the object there is another peer's")


class Shared:
    """Items with the same sources, in the caller's order. `item` is the one to fetch for all of them."""

    def __init__(self, items: Sequence[Wanted]) -> None:
        first, *others = items
        self.item = first
        self._items = items
        self._given: dict[PeerId, Data] = {}
        self._owners: set[PeerId] = set()
        """Those that accept the whole object. Others may accept a beginning that is not theirs."""
        if others:
            opening = None if first.opening is None else Opening(first.opening.num_bytes, self._goes_on)
            self.item = replace(first, accept=self._accept, opening=opening)

    def outcome(self, found: Data | FetchFault) -> dict[PeerId, Data | FetchFault]:
        """Return each peer's share of what `item` got."""
        if len(self._items) == 1:
            return {self.item.peer: found}
        fault = found if isinstance(found, FetchFault) else _ANOTHERS
        whole = None if isinstance(found, FetchFault) else found
        return {
            item.peer: whole if whole is not None and item.peer in self._owners else self._given.get(item.peer, fault)
            for item in self._items
        }

    def put_away(self, shelf: Shelf, found: Data) -> None:
        """Keep the object that `item` got under its owners' names."""
        if len(self._items) == 1:
            return
        for source in self.item.sources:
            path = shelf.place(self.item, source)
            if not path.exists():
                continue
            for owner in sorted(self._owners - {self.item.peer}):
                own = cached(shelf.folder, owner, source.kept_as or source.key)
                try:
                    os.link(path, own)
                except OSError:  # it is there, or this disk has no links
                    with suppress(ConfigError):
                        keep(own, bytes(found))
            if self.item.peer not in self._owners:
                remove(path)

    def _goes_on(self, head: bytes) -> bool:
        return any(_is_begun_by(head, item) for item in self._items)

    def _accept(self, data: Data) -> bool:
        for item in self._items:
            owns = item.opening is None or _is_begun_by(data, item)
            part = data if item.opening is None or owns else data[: item.opening.num_bytes]
            if item.accept(part):
                self._given[item.peer] = part
                if owns:
                    self._owners.add(item.peer)
        return bool(self._owners) or len(self._given) == len(self._items)


def _is_begun_by(data: Data, item: Wanted) -> bool:
    return item.opening is not None and item.opening.goes_on(bytes(data[: item.opening.num_bytes]))


def share(wanted: Sequence[Wanted], shelf: Shelf | None) -> list[Shared]:
    """Return the items, those with the same sources as one. An item that is on the shelf is asked for nowhere, so it
    stays alone."""
    groups: dict[object, list[Wanted]] = {}
    for number, item in enumerate(wanted):
        item = replace(item, sources=_distinct(item.sources))
        alone = not item.sources or any(source.place is None for source in item.sources)
        if alone or (shelf is not None and shelf.has(item)):
            groups[number] = [item]
        else:
            head_bytes = None if item.opening is None else item.opening.num_bytes
            asked = tuple((source.place, source.key) for source in item.sources)
            groups.setdefault((asked, item.size, item.exact, item.part, head_bytes), []).append(item)
    return [Shared(items) for items in groups.values()]


def _distinct(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Drop repeated places."""
    found = {number if one.place is None else (one.place, one.key): one for number, one in enumerate(sources)}
    return tuple(found.values())
