"""The refusals of a bucket that can only be read."""

from pathlib import Path
from typing import Never

from murmur.protocol.errors import AccessDenied
from murmur.protocol.ports import Multipart


class ReadOnly:
    """The writing half of the Bucket port: every call raises AccessDenied and sends nothing."""

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        refuse()

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        refuse()

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        refuse()

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        refuse()

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        refuse()


def refuse() -> Never:
    """Raise AccessDenied."""
    raise AccessDenied("this run is only read: it has no hotkey and no bucket of its own")
