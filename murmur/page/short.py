"""Rounds in the page's short form (`/api/page`): a peer is its index in one list, not a hotkey of 48 letters in every
field of every round. 256 peers x 400 rounds then take 1.6 MB, against 11 MB as `/api/rounds`."""

from collections.abc import Iterable, Mapping
from typing import Any


class Places:
    """Peers in the order of their first mention; the list only grows."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, peer: str) -> int:
        return self._places.setdefault(peer, len(self._places))

    def since(self, count: int) -> list[str]:
        """Return all but the first `count`."""
        return [*self._places][count:]


def shortened(body: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """Return `body` (murmur/page/round.py) with indices for peers. `rejected` and `standing`: code to indices; `pay`
    and `learning`: indices, and their values in the same order."""
    of = places.of
    return {
        **body,
        "contributing": [of(peer) for peer in body["contributing"]],
        "rejected": _by_code(body["rejected"].items(), places),
        "standing": _by_code(body["standing"].items(), places),
        "pay": [[of(peer) for peer in body["pay"]], [*body["pay"].values()]],
        "learning": [[of(peer) for peer in body["learning"]], [*body["learning"].values()]],
    }


def _by_code(found: Iterable[tuple[str, str]], places: Places) -> dict[str, list[int]]:
    by_code: dict[str, list[int]] = {}
    for peer, code in found:
        by_code.setdefault(code, []).append(places.of(peer))
    return by_code
