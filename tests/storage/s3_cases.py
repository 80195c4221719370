"""One S3 bucket at a server that misbehaves, and what its errors may not say."""

import traceback

from storage.s3 import S3Bucket, open_bucket
from tests.storage.hostile import Hostile

SECRET = "5ecret" * 6
PATIENCE = 60.0
"""Time-out in seconds of what something else ends: a busy machine may need it."""
SHORT = 0.3
"""Time-out in seconds of what nothing else ends."""
SLACK = 25.0
"""Seconds by which a busy machine may overshoot a deadline; unbounded servers would take 30 or for ever."""
WORD = "peer-chosen-word"
MIB = 1 << 20


def bucket_at(server: Hostile) -> S3Bucket:
    return open_bucket(server.endpoint, "bucket", "access", SECRET, local=True)


def get(bucket: S3Bucket, *, max_bytes: int = 1000, seconds: float = PATIENCE, exact: bool = False) -> bytes:
    return bucket.get("key", max_bytes=max_bytes, timeout_seconds=seconds, exact=exact)


def assert_says_nothing(error: BaseException) -> None:
    shown = repr(error) + str(error) + "".join(traceback.format_exception(error))
    assert WORD not in shown
    assert SECRET not in shown
