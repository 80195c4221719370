"""The time by a server's clock: every answer has a Date, even a refusal."""

from email.utils import parsedate_to_datetime

from storage.refusals import asking
from storage.transport import Transport


def server_time(endpoint: str, *, timeout_seconds: float) -> float | None:
    """Return the server clock at `endpoint` in Unix seconds, to the second; None without a Date.

    The request is unsigned, so the server answers regardless of clocks and keys. Raises StorageError.
    """
    with asking("head", timeout_seconds):
        exchange = Transport(endpoint, public_only=False)
        date = exchange.send("HEAD", "/", {}, None, stream=False).headers.get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp()
