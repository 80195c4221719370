"""How many threads fetch and open what. Apart from the code that does, so that `murmur plan` counts with the same
numbers and loads no torch."""

FETCH_THREADS = 16
KEY_THREADS = 128
"""Many: a key is small, and half of all hotkeys may be there to hold us up. Source:
docs/decisions/0022-keys-fairly-collected.md."""
PREFETCH_THREADS = 3
"""Few: what is fetched early should arrive whole, and leave the link to what the round waits for."""
OPEN_THREADS = 8
"""Payloads that are opened, or checked, in parallel: the cipher keeps one core busy whatever their number is, and
each has a core or two to itself with what is hashed, copied and parsed."""
PART_THREADS = 64
"""Parts of shards. Many: a part is small, and costs two round trips."""


def parallel_fetches(contributors: int) -> int:
    """How many payloads a validator reads at once: no more than FETCH_THREADS, in rows that the contributors fill. What
    travels together shares the link and is whole together, so others in their last row would hold them up, past the
    reveal deadline where the link carries the contributors' payloads only."""
    return -(-contributors // -(-contributors // FETCH_THREADS))
