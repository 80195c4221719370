"""Typed access to storage items over any source of raw keys, with nested transactions on top.

An item is named "Pallet.Item", or "Item" alone for SubtensorModule. Reads of absent entries return the runtime's
default. Holds uncommitted writes only; author.py commits them to a block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from murmur.lab.devnet.codec import Codec


class Storage:
    """A view of the state, and the writes made on top since."""

    def __init__(self, codec: Codec, read: Callable[[bytes], bytes | None]) -> None:
        self.codec = codec
        self._read = read
        self._layers: list[dict[bytes, bytes | None]] = [{}]

    @property
    def changes(self) -> dict[bytes, bytes | None]:
        """All committed writes: key -> value, None for a deleted one."""
        return self._layers[0]

    def raw(self, key: bytes) -> bytes | None:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        return self._read(key)

    def get(self, name: str, *params: Any) -> Any:
        return self.codec.decode_value(name, self.raw(self.codec.key(name, *params)))

    def put(self, name: str, *params: Any, value: Any) -> None:
        self.put_raw(name, *params, value=self.codec.encode_value(name, value))

    def put_raw(self, name: str, *params: Any, value: bytes) -> None:
        """Like `put`, with an already encoded value."""
        self._layers[-1][self.codec.key(name, *params)] = value

    def delete(self, name: str, *params: Any) -> None:
        self._layers[-1][self.codec.key(name, *params)] = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the writes inside the block take effect together, or not at all when it raises."""
        self._layers.append({})
        try:
            yield
        except BaseException:
            self._layers.pop()
            raise
        layer = self._layers.pop()
        self._layers[-1].update(layer)
