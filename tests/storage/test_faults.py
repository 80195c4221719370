"""The Bucket against a real server whose exchanges go wrong: the right result or a StorageError, in time, and nothing
left half done (tests/storage/trials.py says what that means). TABLE says which of the two."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.auth
import pytest

from murmur.protocol.errors import AccessDenied, StorageError
from storage import refusals, transport
from storage.s3 import S3Bucket
from tests.storage import faults
from tests.storage.faults import SKEW, Forgets, InOrder
from tests.storage.proxy import Action, Exchange, Fault, Proxy, proxied
from tests.storage.trials import OLD, SECONDS, SMALL, VERBS, Trial, Truth, attempt, named

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
WHOLE = {name: RIGHT for verb in ("get", "get all", "create late") for name in (verb, f"{verb} at GetObject")} | {
    "download_to": RIGHT
}
"""They read the object in one go; download_to once more, from the beginning."""
AT_MOST = {"get all": RIGHT, "create late": RIGHT}
"""They do not know the size beforehand."""
CREATED = {"create at PutObject": RIGHT}
"""Whoever looks finds its own bytes there."""
AGAIN = {"Upload": RIGHT}
"""It tries again whatever may pass. The first that it sends as a part is none, but asks how the store takes parts."""
LOOKED = {"create late at PutObject": RIGHT}
"""Another object stands there: `create` looks, whatever becomes of its own request."""

TABLE = (
    # The connection.
    Row("reset before the server hears of it", faults.resets_unheard, ALL, but=LOOKED),
    Row("closed where the answer should begin", faults.closes_unheard, ALL, but=LOOKED),
    Row("closed after a good answer", faults.closes_afterwards, ALL, always=RIGHT),
    Row("the answer lost", faults.loses_the_answer, ALL, but=COMPLETED | CREATED | LOOKED),
    Row("the answer never sent", faults.keeps_the_answer, ALL, waits=True),
    Row("an interim answer first", faults.continues_first, ALL, always=RIGHT),
    Row("the body broken off at once", faults.breaks_body(0, reset=False), BODIES, but=COMPLETED),
    Row("the body reset at once", faults.breaks_body(0, reset=True), BODIES, but=COMPLETED),
    Row("the body broken off in its middle", faults.breaks_body(0.5, reset=False), DOCUMENTS, but=COMPLETED),
    Row("half of the body", faults.breaks_body(0.5, reset=False), ("GetObject",), always=RIGHT),
    Row("half of the body and a reset", faults.breaks_body(0.5, reset=True), ("GetObject",)),
    Row("more bytes than there are", faults.sends_more, READ, always=RIGHT),
    Row("the body stalls", faults.stalls_body(0.5, 3600), BODIES, waits=True),
    Row("the body comes byte by byte", faults.slows_body(1, 0.2), BODIES, once=StorageError, waits=True),
    Row("the head comes byte by byte", faults.drips_head, ALL, once=StorageError, waits=True),
    Row("the request's body taken slowly", faults.takes_slowly, SENT, once=StorageError, waits=True),
    # Statuses.
    Row("503 SlowDown", faults.refuses("503 Slow Down", "SlowDown"), ALL, but=LOOKED, times=3),
    Row("503 and Retry-After", faults.refuses("503 Slow Down", "SlowDown", retry_after="3600"), ALL, but=LOOKED),
    Row(
        "503 and closed before the request was read",
        faults.refuses_unread("503 Slow Down", "SlowDown"),
        ALL,
        but=LOOKED,
    ),
    Row("500 InternalError", faults.refuses("500 Internal Server Error", "InternalError"), ALL, but=LOOKED),
    Row("200 with an error, nothing done", faults.fails_with_200("InternalError", done=False), DOCUMENTS),
    Row("200 with an error, but done", faults.fails_with_200("InternalError", done=True), DOCUMENTS, but=COMPLETED),
    Row(
        "404, since it was done before",
        faults.does_and_refuses("404 Not Found", "NoSuchUpload"),
        ("AbortMultipartUpload",),
        always=RIGHT,
    ),
    Row("307", faults.redirects("http://127.0.0.1:9"), ALL, once=StorageError, but=LOOKED),
    Row("the clocks differ", faults.refuses("403 Forbidden", "RequestTimeTooSkewed"), ALL, AccessDenied, AccessDenied),
    Row("the server's Date is 20 minutes off", faults.dated(SKEW), ALL, always=RIGHT),
    # What the answer says.
    Row("no ETag of the object", faults.without("etag"), ("HeadObject",), once=StorageError, blind=("head",)),
    Row("no ETag of a part", faults.without("etag"), ("UploadPart",), once=StorageError, but=AGAIN),
    Row("another ETag of a part", faults.saying(etag='"beef"'), ("UploadPart",), once=StorageError, but=AGAIN),
    Row("another ETag of a range", faults.saying(etag='"beef"'), ("GetObject",), once=StorageError, but=WHOLE),
    Row("no Content-Length", faults.without("content-length"), ("GetObject", "HeadObject"), once=StorageError),
    Row("a larger Content-Length", faults.miscounts(1000), READ, StorageError, but=AT_MOST, blind=("head",)),
    Row(
        "a smaller Content-Length",
        faults.miscounts(-1000),
        READ,
        once=StorageError,
        blind=("head", "get all", "create late"),
    ),
    Row("gzip", faults.compresses, READ, once=StorageError),
    Row("half a document", faults.truncates(0.5), DOCUMENTS, but=COMPLETED),
    Row("an empty document", faults.truncates(0), DOCUMENTS, once=StorageError, but=COMPLETED | AGAIN),
    Row("a listing that never ends", faults.never_ends, LISTINGS, always=RIGHT),
)


@dataclass(frozen=True)
class Cell:
    """One trial of the table."""

    row: Row
    verb: str
    fault: Fault
    expected: Expected

    @property
    def slow(self) -> bool:
        """Left to the long tests: twins of what the short ones do, and most of what ends by a time-out only."""
        if self.row.waits or self.fault.times is None:
            return self.verb not in ("get", "put", "Upload") or (self.row.waits and self.fault.times is not None)
        return self.verb in ("put file", "put large", "get all")


def cells() -> Iterator[Any]:
    for row, (name, verb) in itertools.product(TABLE, VERBS.items()):
        hit = [operation for operation in verb.operations if operation in row.operations]
        if not hit or name in row.blind:
            continue
        once = Fault(row.does, row.operations, times=row.times)
        yield param(f"{row.name}: {name}", Cell(row, name, once, row.but.get(name, row.once)))
        for operation in hit:
            where = f"{name} at {operation}"
            always = Fault(row.does, (operation,))
            yield param(f"{row.name}, always: {where}", Cell(row, name, always, row.but.get(where, row.always)))


def param(name: str, cell: Cell) -> Any:
    return pytest.param(cell, id=name, marks=[pytest.mark.slow] if cell.slow else [])


def with_quick_ones(cells: list[Any]) -> list[Any]:
    """One cell of each row is quick, as many verbs as possible among them."""
    for number, row in enumerate(TABLE):
        short = [cell for cell in cells if cell.values[0].row is row and not cell.marks]
        chosen = short[number % len(short)]
        cells[cells.index(chosen)] = chosen._replace(marks=[pytest.mark.quick])
    return cells


@pytest.mark.parametrize("cell", with_quick_ones(list(cells())))
def test_a_fault_costs_no_more_than_an_error(
    cell: Cell,
    truth: Truth,
    proxy: Proxy,
    bucket: S3Bucket,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What nothing but the deadline ends has a short one.
    if cell.row.waits:
        seconds, read_seconds = (SECONDS, 1.0) if cell.expected is RIGHT else (0.5, 0.5)
    else:
        seconds, read_seconds = SECONDS, 10.0
    monkeypatch.setattr(transport, "READ_SECONDS", read_seconds)
    proxy.faults.append(cell.fault)
    raised = attempt(Trial(truth, proxy, bucket, key, tmp_path, seconds, read_seconds), VERBS[cell.verb])
    assert isinstance(raised, cell.expected or type(None)), raised


def trial(truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, folder: Path, seconds: float = SECONDS) -> Trial:
    return Trial(truth, proxy, bucket, key, folder, seconds, transport.READ_SECONDS)


# --- creation: what stands decides, whatever the answer was ----------------------------------------------------------

UNHEARD = faults.resets_unheard
CONFLICT = faults.refuses("409 Conflict", "ConditionalRequestConflict")
REFUSED = faults.refuses("412 Precondition Failed", "PreconditionFailed")


@pytest.mark.parametrize(
    "does",
    [
        faults.loses_the_answer,
        faults.does_and_refuses("409 Conflict", "ConditionalRequestConflict"),
        faults.does_and_refuses("412 Precondition Failed", "PreconditionFailed"),
        faults.does_and_refuses("500 Internal Server Error", "InternalError"),
    ],
    ids=["no answer", "409", "412", "500"],
)
def test_who_finds_its_own_bytes_there_has_created_them(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, does: Action
) -> None:
    for times in (1, None):
        proxy.faults.append(Fault(does, ("PutObject",), times=times))
        proxy.restart()
        assert attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS["create"]) is None
        assert named(truth.stands(key)) == named(SMALL)


@pytest.mark.parametrize("does", [UNHEARD, CONFLICT, REFUSED], ids=["not heard of", "409", "412"])
def test_nothing_was_created_where_nothing_stands(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, does: Action
) -> None:
    proxy.faults.append(Fault(does, ("PutObject",)))
    assert attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS["create"]) is not None
    assert truth.stands(key) is None


@pytest.mark.parametrize(
    "does",
    [Exchange.forward, UNHEARD, faults.loses_the_answer, CONFLICT, REFUSED],
    ids=["the store's own 412", "not heard of", "no answer", "409", "412"],
)
def test_another_object_that_stands_stays_and_is_not_ours(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, does: Action
) -> None:
    proxy.faults.append(Fault(does, ("PutObject",)))
    assert attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS["create late"]) is None
    assert named(truth.stands(key)) == named(OLD)


@pytest.mark.parametrize("then", [UNHEARD, faults.loses_the_answer], ids=["not heard of", "no answer"])
def test_who_is_overtaken_while_it_creates_is_told_so(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, then: Action
) -> None:
    proxy.faults.append(Fault(faults.after(lambda: truth.put(key, OLD), then), ("PutObject",), times=1))
    assert not bucket.create(key, SMALL, timeout_seconds=SECONDS)
    assert named(truth.stands(key)) == named(OLD)


# --- what takes more than one request to go wrong --------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["put large", "put large file", "parts", "Upload"])
def test_an_upload_that_the_server_completed_and_forgot_is_not_sent_twice(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, verb: str
) -> None:
    proxy.faults.append(Fault(Forgets(), ("CompleteMultipartUpload",)))
    assert attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS[verb]) is None
    assert proxy.operations().count("CreateMultipartUpload") == 1


@pytest.mark.parametrize("waits", [False, True], ids=["refuses", "waits"])
@pytest.mark.parametrize("verb", ["put large file", "parts", "Upload"])
def test_a_store_that_takes_parts_in_order_only_gets_them_so_or_is_given_up_in_time(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, verb: str, waits: bool
) -> None:
    proxy.faults.append(Fault(InOrder(waits=waits), ("UploadPart",)))
    attempt(trial(truth, proxy, bucket, key, tmp_path, seconds=3.0), VERBS[verb])


@pytest.mark.parametrize("verb", ["get", "put", "head", "list", "delete", "Upload"])
def test_nobody_is_asked_where_a_redirect_leads(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, verb: str
) -> None:
    with proxied(truth.endpoint) as elsewhere:
        proxy.faults.append(Fault(faults.redirects(elsewhere.endpoint)))
        assert attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS[verb]) is not None
    assert elsewhere.seen == []


@pytest.mark.parametrize("skew", [SKEW, -SKEW], ids=["fast", "slow"])
@pytest.mark.parametrize("verb", ["get", "put", "head", "list", "download_to", "Upload"])
def test_a_clock_that_the_server_does_not_believe_is_named(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path, verb: str, skew: timedelta
) -> None:
    refuses = faults.refuses("403 Forbidden", "RequestTimeTooSkewed", date=faults.http_date(skew))
    proxy.faults.append(Fault(refuses))
    raised = attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS[verb])
    assert isinstance(raised, AccessDenied)
    assert "clock" in str(raised)


@pytest.mark.parametrize("verb", ["get", "put", "head"])
def test_our_own_clock_20_minutes_off_is_named(
    truth: Truth, bucket: S3Bucket, key: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth.put(key, OLD)
    signs = botocore.auth.get_current_datetime
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: bucket.get(key, max_bytes=len(OLD), timeout_seconds=SECONDS),
        "put": lambda: bucket.put(key, OLD, timeout_seconds=SECONDS),
        "head": lambda: bucket.head(key, timeout_seconds=SECONDS),
    }
    with monkeypatch.context() as wrong:
        wrong.setattr(botocore.auth, "get_current_datetime", lambda *given: signs(*given) + SKEW)
        wrong.setattr(refusals, "time", SimpleNamespace(time=lambda: time.time() + SKEW.total_seconds()))
        with pytest.raises(AccessDenied, match="clock"):
            calls[verb]()


def test_no_request_waits_for_a_100_continue(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, key: str, tmp_path: Path
) -> None:
    for verb in ("put", "put large file", "Upload"):
        assert attempt(trial(truth, proxy, bucket, key, tmp_path), VERBS[verb]) is None
    assert [one.request.operation for one in proxy.seen if "expect" in one.request.headers] == []
