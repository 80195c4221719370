"""What a server's clock says: any answer has a Date, also a refusal."""

from email.utils import parsedate_to_datetime

from storage.refusals import asking
from storage.transport import Transport


def server_time(endpoint: str, *, timeout_seconds: float) -> float | None:
    """Unix seconds of the clock of the server at `endpoint`, to the second; None when it does not say. Asked without a
    signature, so that it answers whatever the clocks and keys are. Raises StorageError."""
    with asking("head", timeout_seconds):
        exchange = Transport(endpoint, public_only=False)
        date = exchange.send("HEAD", "/", {}, None, stream=False).headers.get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp()
