"""Free ports of this machine."""

import secrets
import socket
from contextlib import suppress

HOST = "127.0.0.1"
_PORTS = range(16384, 32768)
"""Below the ports that the kernel gives to outgoing connections: none of those takes ours while we are down."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now."""
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(_PORTS)
        with socket.socket() as sock, suppress(OSError):
            sock.bind((HOST, port))
            found.add(port)
    return list(found)
