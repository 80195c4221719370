"""Distinguish a server whose address is wrong from one that only hangs, for servers that the operator named."""

import socket
from urllib.parse import urlsplit

from murmur.node.doctor.finding import Reaction
from murmur.proxies import proxy_for
from storage.deadline import deadline
from storage.transport import resolve

CONNECT_SECONDS = 2.0
SHARE = 0.9
"""Share of a call's time-out: an answer that came sooner was an answer, of whatever kind."""


def reaction(url: str, took_seconds: float, limit_seconds: float) -> Reaction:
    """Return HANGS if the server used up its time and nothing shows that it does not exist: it is busy, or its address
    silent. Return REACH if its host name is unknown, the connection is refused, or it gave an unexpected answer."""
    hangs = took_seconds >= SHARE * limit_seconds and not _refuses(url)
    return Reaction.HANGS if hangs else Reaction.REACH


def _refuses(url: str) -> bool:
    parts = urlsplit(proxy_for(url) or url)
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
