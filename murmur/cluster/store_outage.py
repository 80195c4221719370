"""Waiting for a cluster's store. Tells the operator what it waits for."""

from loguru import logger

from murmur.protocol.errors import AccessDenied, StorageError
from murmur.protocol.ports import Time

KEY_REPLACED = "If the key was replaced, ask for the new token (murmur cluster invite), and start again with it"
_TOLD_AGAIN_SECONDS = 600.0


class StoreOutage:
    """Waits until the store serves us: it is away, or has lost what we need. Logs the beginning, each change of the
    cause, a reminder every ten minutes, and the end."""

    def __init__(self, time: Time, pause_seconds: float) -> None:
        self._time, self._pause = time, pause_seconds
        self._since: float | None = None
        self._told, self._again = "", 0.0

    def failed(self, fault: StorageError) -> None:
        """Log the failure, and wait before the next try."""
        now, text = self._time.now(), str(fault)
        self._since = now if self._since is None else self._since
        if text != self._told or now >= self._again:
            self._told, self._again = text, now + _TOLD_AGAIN_SECONDS
            logger.warning(
                "the store does not serve us ({fault}): our work is kept, and we continue when it does{more}",
                fault=text,
                more=f". {KEY_REPLACED}" if isinstance(fault, AccessDenied) else "",
            )
        self._time.sleep(self._pause)

    def answered(self) -> None:
        if self._since is not None:
            logger.info("the store serves us again after {seconds} s", seconds=int(self._time.now() - self._since))
            self._since, self._told = None, ""
