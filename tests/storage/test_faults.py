"""The Bucket against a real server whose exchanges go wrong: the right result or a StorageError, in time, and nothing
left half done (tests/storage/trials.py says what that means). TABLE says which of the two."""

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from localnet.store import StoreReady
from protocol.errors import AccessDenied, ObjectTooLarge, StorageError
from storage import client, exchange, s3, transport, upload
from storage.s3 import S3Bucket, open_bucket
from tests.storage import faults
from tests.storage.faults import SKEW, Forgets, InOrder
from tests.storage.proxy import Action, Fault, Proxy, proxied
from tests.storage.trials import OLD, PART_BYTES, VERBS, Trial, Truth, attempt

RIGHT = None
"""It returns the right result, and what it was to write stands."""
Expected = type[StorageError] | None

READ = ("GetObject", "HeadObject")
SENT = ("PutObject", "UploadPart")
DOCUMENTS = ("ListObjectsV2", "ListMultipartUploads", "CreateMultipartUpload", "CompleteMultipartUpload")
"""Operations that are answered in XML."""
LISTINGS = ("ListObjectsV2", "ListMultipartUploads")
BODIES = ("GetObject", *DOCUMENTS)
ALL = (*READ, *SENT, *DOCUMENTS, "DeleteObject", "AbortMultipartUpload")


@dataclass(frozen=True)
class Row:
    """A fault, the operations that it hits, and what comes of it: when it hits each of them `times` times, and when it
    hits one of them always. `but`: verbs, or a verb at an operation, of which something else is expected."""

    name: str
    does: Action
    operations: tuple[str, ...]
    once: Expected = RIGHT
    always: Expected = StorageError
    but: Mapping[str, Expected] = field(default_factory=dict)
    blind: tuple[str, ...] = ()
    """Verbs that cannot know better: one answer's word about the object is all that they go by."""
    times: int = 1
    waits: bool = False
    """Nothing ends it but a time-out."""


COMPLETED = {f"{verb} at CompleteMultipartUpload": RIGHT for verb in ("put large", "put large file", "parts", "Upload")}
"""Whoever looks finds that the object stands, whatever the answer was."""
NO_RANGES = {"get": RIGHT, "get all": RIGHT, "get at GetObject": RIGHT, "get all at GetObject": RIGHT, "download_to": RIGHT}
"""They read the object in one go; download_to does so once more, from the beginning."""
BEGUN_AGAIN = {"Upload": RIGHT}
PROBED = {"Upload": RIGHT}
"""What it sends first is no part, but asks how the store takes parts."""

TABLE = (
    # The connection.
    Row("reset before the server hears of it", faults.resets_unheard, ALL),
    Row("closed where the answer should begin", faults.closes_unheard, ALL),
    Row("closed after a good answer", faults.closes_afterwards, ALL, always=RIGHT),
    Row("the answer lost", faults.loses_the_answer, ALL, but=COMPLETED),
    Row("the answer never sent", faults.keeps_the_answer, ALL, waits=True),
    Row("an interim answer first", faults.continues_first, ALL, always=RIGHT),
    Row("the body broken off at once", faults.breaks_body(0, reset=False), BODIES, but=COMPLETED),
    Row("the body reset at once", faults.breaks_body(0, reset=True), BODIES, but=COMPLETED),
    Row("the body broken off in its middle", faults.breaks_body(0.5, reset=False), DOCUMENTS, but=COMPLETED),
    Row("half of the body", faults.breaks_body(0.5, reset=False), ("GetObject",), always=RIGHT),
    Row("half of the body and a reset", faults.breaks_body(0.5, reset=True), ("GetObject",)),
    Row("more bytes than there are", faults.sends_more, READ, always=RIGHT),
    Row("the body stalls", faults.stalls_body(0.5, 3600), BODIES, waits=True),
    Row("the body comes byte by byte", faults.drips_body, BODIES, once=StorageError, waits=True),
    Row("the head comes byte by byte", faults.drips_head, ALL, once=StorageError, waits=True),
    Row("the request's body taken slowly", faults.takes_slowly, SENT, once=StorageError, waits=True),
    # Statuses.
    Row("503 SlowDown", faults.refuses("503 Slow Down", "SlowDown"), ALL, times=3),
    Row("503 and Retry-After", faults.refuses("503 Slow Down", "SlowDown", retry_after="3600"), ALL),
    Row("503 and closed before the request was read", faults.refuses_unread("503 Slow Down", "SlowDown"), ALL),
    Row("500 InternalError", faults.refuses("500 Internal Server Error", "InternalError"), ALL),
    Row("200 with an error, nothing done", faults.fails_with_200("InternalError", done=False), DOCUMENTS),
    Row("200 with an error, but done", faults.fails_with_200("InternalError", done=True), DOCUMENTS, but=COMPLETED),
    Row("307", faults.redirects("http://127.0.0.1:9"), ALL, once=StorageError),
    Row("the clocks differ", faults.refuses("403 Forbidden", "RequestTimeTooSkewed"), ALL, AccessDenied, AccessDenied),
    Row("the server's Date is 20 minutes off", faults.dated(SKEW), ALL, always=RIGHT),
    # What the answer says.
    Row("no ETag of the object", faults.without("etag"), ("HeadObject",), once=StorageError, blind=("head",)),
    Row("no ETag of a part", faults.without("etag"), ("UploadPart",), once=StorageError, but=PROBED),
    Row("another ETag of a part", faults.saying(etag='"beef"'), ("UploadPart",), once=StorageError, but=PROBED),
    Row("another ETag of a range", faults.saying(etag='"beef"'), ("GetObject",), once=StorageError, but=NO_RANGES),
    Row("no Content-Length", faults.without("content-length"), ("GetObject", "HeadObject"), once=StorageError),
    Row("a larger Content-Length", faults.miscounts(1000), READ, StorageError, but={"get all": RIGHT}, blind=("head",)),
    Row("a smaller Content-Length", faults.miscounts(-1000), READ, once=StorageError, blind=("head", "get all")),
    Row("gzip", faults.compresses, READ, once=StorageError),
    Row("half a document", faults.truncates(0.5), DOCUMENTS, but=COMPLETED),
    Row("an empty document", faults.truncates(0), DOCUMENTS, once=StorageError, but=COMPLETED | BEGUN_AGAIN),
    Row("a listing that never ends", faults.never_ends, LISTINGS, always=RIGHT),
)


@pytest.fixture(scope="module")
def truth(s3_store: StoreReady) -> Truth:
    user = s3_store.users["miner-0"]
    client: Any = boto3.client(
        "s3",
        endpoint_url=s3_store.endpoint,
        region_name="us-east-1",
        aws_access_key_id=user.write_access_key,
        aws_secret_access_key=user.write_secret_key,
        config=Config(request_checksum_calculation="when_required", response_checksum_validation="when_required"),
    )
    return Truth(client, user.bucket)


_keys = (f"faults/{number}" for number in itertools.count())


@pytest.fixture
def key(truth: Truth) -> Iterator[str]:
    """A key of this test's own."""
    key = next(_keys)
    yield key
    truth.delete(key)


@pytest.fixture
def proxy(s3_store: StoreReady) -> Iterator[Proxy]:
    with proxied(s3_store.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(proxy: Proxy, s3_store: StoreReady, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    """miner-0's, through the proxy; impatient, with the smallest parts that the server takes."""
    for module in (s3, upload):
        monkeypatch.setattr(module, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(client, "_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(exchange, "_PUBLISH_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(s3, "_ABORT_SECONDS", 2.0)
    monkeypatch.setattr(upload, "ABORT_SECONDS", 2.0)
    user = s3_store.users["miner-0"]
    return open_bucket(proxy.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)


@dataclass(frozen=True)
class Cell:
    """One trial of the table."""

    row: Row
    verb: str
    fault: Fault
    expected: Expected

    @property
    def in_haste(self) -> bool:
        """Nothing but the deadline will end it."""
        return self.row.waits and self.expected is not RIGHT


def cells() -> Iterator[Any]:
    for row, (name, verb) in itertools.product(TABLE, VERBS.items()):
        hit = [operation for operation in verb.operations if operation in row.operations]
        if not hit or name in row.blind:
            continue
        once = Fault(row.does, row.operations, times=row.times)
        yield cell(f"{row.name}, {name}", Cell(row, name, once, row.but.get(name, row.once)))
        for operation in hit:
            where = f"{name} at {operation}"
            always = Fault(row.does, (operation,))
            yield cell(f"{row.name}, always: {where}", Cell(row, name, always, row.but.get(where, row.always)))


def cell(name: str, cell: Cell) -> Any:
    return pytest.param(cell, id=name)


@pytest.mark.parametrize("cell", tuple(cells()))
def test_a_fault_costs_no_more_than_an_error(
    cell: Cell,
    truth: Truth,
    proxy: Proxy,
    bucket: S3Bucket,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_seconds = 1.0 if cell.row.waits else 10.0
    monkeypatch.setattr(transport, "READ_SECONDS", read_seconds)
    proxy.faults.append(cell.fault)
    trial = Trial(truth, proxy, bucket, key, tmp_path, 1.0 if cell.in_haste else 20.0, read_seconds)
    raised = attempt(trial, VERBS[cell.verb])
    assert type(raised) is type(None) if cell.expected is None else isinstance(raised, cell.expected), raised
