"""Why a server that the operator named does not do what it is asked: whether its address is wrong, or it only hangs."""

import socket
from urllib.parse import urlsplit

from node.doctor.finding import Reaction
from storage.transport import deadline, resolve

CONNECT_SECONDS = 2.0
SHARE = 0.9
"""Of the time that a question had: an answer that took no longer, whatever it was, was one."""


def reaction(url: str, took_seconds: float, limit_seconds: float) -> Reaction:
    """HANGS where the server used up its time and nothing says that it is not there: it is busy, or its address silent.
    REACH where its host name is nobody's, the connection is refused, or it answered something else."""
    hangs = took_seconds >= SHARE * limit_seconds and not _refuses(url)
    return Reaction.HANGS if hangs else Reaction.REACH


def _refuses(url: str) -> bool:
    parts = urlsplit(url)
    if parts.hostname is None:
        return False  # a network's name, not an address: it is known to be right
    port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    try:
        with deadline(CONNECT_SECONDS):
            found = resolve(parts.hostname, port)
    except TimeoutError:
        return False
    except (OSError, UnicodeError):
        return True
    for family, _, where in found:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(CONNECT_SECONDS)
            try:
                sock.connect(where)
            except TimeoutError:
                return False
            except OSError:
                continue
            return False
    return True
