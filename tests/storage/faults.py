"""What goes wrong between a client and an S3 server, as actions of the proxy (tests/storage/proxy.py)."""

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from math import ceil
from urllib.parse import urlsplit

from tests.storage.proxy import Action, Exchange, HangUp, Response, xml
from tests.storage.trials import Truth

SKEW = timedelta(minutes=20)

# --- the connection -------------------------------------------------------------------------------------------------


def resets_unheard(exchange: Exchange) -> Response:
    """The connection is reset before the server heard of the request."""
    raise HangUp(reset=True)


def closes_unheard(exchange: Exchange) -> Response:
    """The connection is closed where the answer should begin: as a server does with one that was idle too long."""
    raise HangUp(reset=False)


def loses_the_answer(exchange: Exchange) -> Response:
    """The server did it; its answer never comes, the connection is reset."""
    exchange.forward().read()
    raise HangUp(reset=True)


def keeps_the_answer(exchange: Exchange) -> Response:
    """The server did it; its answer never comes, the connection stays."""
    exchange.forward().read()
    exchange.wait(3600)
    raise HangUp(reset=True)


def closes_afterwards(exchange: Exchange) -> Response:
    """A good answer, with which the connection ends, though nothing was said of that."""
    return replace(exchange.forward(), after="close")


def resets_afterwards(exchange: Exchange) -> Response:
    answer = exchange.forward()
    answer.read()
    return replace(answer, after="reset")


def breaks_body(share: float, *, reset: bool) -> Action:
    """The answer's body breaks off after a share of its bytes."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        return replace(answer, body=_broken(answer.read(), share, lambda: _hang_up(reset)))

    return does


def stalls_body(share: float, seconds: float) -> Action:
    """The answer's body pauses after a share of its bytes, then goes on."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        return replace(answer, body=_broken(answer.read(), share, lambda: exchange.wait(seconds)))

    return does


def slows_body(num_bytes: int, seconds: float) -> Action:
    """The answer's body comes in blocks of so many bytes, with pauses."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        return replace(answer, body=_dripped(answer.read(), num_bytes, seconds, exchange))

    return does


def drips_head(exchange: Exchange) -> Response:
    """The answer's head never ends: a byte a fifth of a second."""
    exchange.forward().read()
    return Response("200 OK", {"x-slow": "x"}, _dripped(b"x" * 3600, 1, 0.2, exchange), endless_head=True)


def takes_slowly(exchange: Exchange) -> Response:
    """The request's body is taken at 64 KiB a second."""
    exchange.body = _slowed(exchange.body, exchange)
    return exchange.forward()


def continues_first(exchange: Exchange) -> Response:
    """An interim answer that nobody asked for comes first."""
    answer = exchange.forward()
    return replace(answer, status="100 Continue\r\n\r\nHTTP/1.1 " + answer.status)


# --- statuses -------------------------------------------------------------------------------------------------------


def error(code: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>no</Message></Error>'


def refuses(status: str, code: str, **headers: str) -> Action:
    """The server refuses without doing anything. To HEAD it cannot say why."""

    def does(exchange: Exchange) -> Response:
        for _ in exchange.body:
            pass
        return xml(status, "" if exchange.request.method == "HEAD" else error(code), **headers)

    return does


def does_and_refuses(status: str, code: str) -> Action:
    """What a client sees that asks again for what was done, and whose answer was lost."""

    def does(exchange: Exchange) -> Response:
        exchange.forward().read()
        return xml(status, error(code))

    return does


def refuses_unread(status: str, code: str) -> Action:
    """The server refuses before it has taken the request's body, and closes the connection on it."""
    return lambda exchange: replace(xml(status, error(code), connection="close"), after="close")


def fails_with_200(code: str, *, done: bool) -> Action:
    """The status is sent before the deed: an error that comes later stands in the body of a 200."""

    def does(exchange: Exchange) -> Response:
        if done:
            exchange.forward().read()
        for _ in exchange.body:
            pass
        return xml("200 OK", error(code))

    return does


def takes_no_condition(status: str, code: str) -> Action:
    """A server that refuses a PutObject with If-None-Match, and takes one without."""
    refused = refuses(status, code)
    return lambda exchange: (refused if "if-none-match" in exchange.request.headers else Exchange.forward)(exchange)


def redirects(to: str) -> Action:
    def does(exchange: Exchange) -> Response:
        for _ in exchange.body:
            pass
        return xml("307 Temporary Redirect", error("TemporaryRedirect"), location=to + exchange.request.target)

    return does


# --- what the answer says -------------------------------------------------------------------------------------------


def without(*names: str) -> Action:
    """Headers are missing."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        for name in names:
            answer.headers.pop(name, None)
        return answer

    return does


def saying(**headers: str) -> Action:
    """Headers say something else."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        return answer

    return does


def miscounts(by: int) -> Action:
    """The Content-Length is so many bytes off; the body is as it was, then the connection ends."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        claimed = max(0, int(answer.headers.get("content-length", 0)) + by)
        answer.headers["content-length"] = str(claimed)
        return replace(answer, after="close")

    return does


def sends_more(exchange: Exchange) -> Response:
    """The body goes on where it should have ended; the connection stays. Sent as one: what comes only when the
    connection has been asked again is that question's answer, for all that HTTP says."""
    answer = exchange.forward()
    return replace(answer, body=(answer.read() + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",))


def compresses(exchange: Exchange) -> Response:
    """The body is sent gzipped, as a cache on the way does it."""
    answer = exchange.forward()
    packed = gzip.compress(answer.read())
    answer.headers.update({"content-encoding": "gzip", "content-length": str(len(packed))})
    return replace(answer, body=(packed,))


def truncates(share: float) -> Action:
    """The body ends early and the Content-Length says so."""

    def does(exchange: Exchange) -> Response:
        answer = exchange.forward()
        kept = answer.read()[: int(int(answer.headers.get("content-length", 0)) * share)]
        answer.headers["content-length"] = str(len(kept))
        return replace(answer, body=(kept,))

    return does


def never_ends(exchange: Exchange) -> Response:
    """A listing that says again and again that there is more."""
    answer = exchange.forward()
    more = b"<NextContinuationToken>t</NextContinuationToken><IsTruncated>true<"
    body = answer.read().replace(b"<IsTruncated>false<", more)
    answer.headers["content-length"] = str(len(body))
    return replace(answer, body=(body,))


def dated(skew: timedelta) -> Action:
    """The server's clock is off."""
    return lambda exchange: saying(date=http_date(skew))(exchange)


def http_date(skew: timedelta) -> str:
    return format_datetime(datetime.now(UTC) + skew, usegmt=True)


# --- the deed -------------------------------------------------------------------------------------------------------


def after(deed: Callable[[], None], then: Action = Exchange.forward) -> Action:
    """Something happens to the bucket before the request gets there."""

    def does(exchange: Exchange) -> Response:
        deed()
        return then(exchange)

    return does


def ignores_if_match(truth: Truth) -> Action:
    """A server that knows no If-Match: the object is served as it is now, with its own ETag. What is read may not be
    signed for another question, so it is asked for in the owner's name."""

    def does(exchange: Exchange) -> Response:
        names = {"Bucket": truth.bucket, "Key": exchange.request.key}
        url = urlsplit(truth.client.generate_presigned_url("get_object", Params=names))
        lines = [f"GET {url.path}?{url.query} HTTP/1.1", f"Host: {url.netloc}"]
        if "range" in exchange.request.headers:
            lines.append(f"Range: {exchange.request.headers['range']}")
        return exchange.forward("\r\n".join([*lines, "", ""]).encode())

    return does


class Forgets:
    """A store that knows an upload no more once it is complete, and whose first answer to that is lost: asked again, it
    says 404."""

    def __init__(self) -> None:
        self._complete: set[str] = set()

    def __call__(self, exchange: Exchange) -> Response:
        upload = exchange.request.query["uploadId"]
        if upload in self._complete:
            return refuses("404 Not Found", "NoSuchUpload")(exchange)
        answer = exchange.forward()
        answer.read()
        if not answer.status.startswith("200"):
            return answer
        self._complete.add(upload)
        raise HangUp(reset=True)


class InOrder:
    """A store that takes parts only in order: one that comes too early is refused, or waits for its turn."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._done: dict[str, int] = {}
        self._turn = threading.Condition()

    def __call__(self, exchange: Exchange) -> Response:
        upload, part = exchange.request.query["uploadId"], exchange.request.part
        with self._turn:
            while part > self._done.get(upload, 0) + 1:
                if not self._waits:
                    for _ in exchange.body:
                        pass
                    return xml("400 Bad Request", error("InvalidPartOrder"))
                self._turn.wait(0.05)
                exchange.wait(0)
        answer = exchange.forward()
        answer.read()
        with self._turn:
            self._done[upload] = max(part, self._done.get(upload, 0))
            self._turn.notify_all()
        return answer


# --- bodies ---------------------------------------------------------------------------------------------------------


def _broken(body: bytes, share: float, event: Callable[[], None]) -> Iterator[bytes]:
    cut = ceil(len(body) * share)
    yield body[:cut]
    event()
    yield body[cut:]


def _dripped(body: bytes, num_bytes: int, seconds: float, exchange: Exchange) -> Iterator[bytes]:
    for first in range(0, len(body), num_bytes):
        yield body[first : first + num_bytes]
        exchange.wait(seconds)


def _slowed(body: Iterator[bytes], exchange: Exchange) -> Iterator[bytes]:
    for block in body:
        exchange.wait(1)
        yield block


def _hang_up(reset: bool) -> None:
    raise HangUp(reset=reset)
