"""A network namespace for each of several processes, on links that the kernel shapes. Linux, root, iproute2.

    python benchmarks/cluster_namespaces.py NAME ARGUMENTS..

runs `python ARGUMENTS` in the namespace NAME, with NAME as its host name. That is for processes of a program that has
called `enter`: all namespaces vanish with the last of its processes.

Every namespace has one link, to the hub: the namespace of that program itself, which forwards what they send each
other. Both ways of each link have a token bucket. So whatever a process sends, to the hub or to the others, shares its
uplink; what it gets shares its downlink.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from murmur.protocol.errors import ConfigError

HUB = "10.77.0.1"
"""The hub's address, for all namespaces."""
INTERFACE = "eth0"
"""Of every namespace."""
BURST_BYTES = 64 << 10
"""What a link passes at once after it was idle: 16 ms at 32 Mb/s."""
QUEUE_MS = 200
"""A packet that would wait longer is dropped, as by a router."""
_NAMED = Path("/run/netns")
_NEW_MOUNTS, _NEW_UTS, _NEW_NET = 0x00020000, 0x04000000, 0x40000000


def require() -> None:
    """Raise ConfigError where links cannot be shaped."""
    missing = [name for name in ("ip", "tc", "mount") if shutil.which(name) is None]
    if missing or not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise ConfigError(
            "links shaped by the kernel need Linux, root, and ip and tc (the package iproute2): run this as root, in a "
            "virtual machine or a privileged container"
        )


def enter() -> None:
    """Move this process, which must have one thread, into a network and a mount namespace of its own."""
    _call("unshare", _NEW_NET | _NEW_MOUNTS)
    _NAMED.mkdir(exist_ok=True)
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "tmpfs", "none", str(_NAMED))
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{HUB}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


class Namespaces:
    """One for each name. The process must have called `enter`. mbps: of each link and direction, 10^6 bits a second."""

    def __init__(self, names: Sequence[str], mbps: float) -> None:
        self.addresses = {name: f"10.77.{number}.2" for number, name in enumerate(names, 1)}
        for number, name in enumerate(names, 1):
            self._add(number, name, mbps)
        self._name_hosts()

    def inside(self, name: str, arguments: Iterable[str]) -> list[str]:
        """Return python's arguments that run `python ARGUMENTS` in the namespace."""
        return [str(Path(__file__).resolve()), name, *arguments]

    def close(self) -> None:
        """Remove them."""
        _run("umount", "/etc/hosts")
        for name in self.addresses:
            _run("ip", "netns", "delete", name)

    def _add(self, number: int, name: str, mbps: float) -> None:
        hub, gateway = f"to-{number}", f"10.77.{number}.1"
        within = ("ip", "-netns", name)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", hub, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _run("ip", "address", "add", f"{gateway}/24", "dev", hub)
        _run("ip", "link", "set", hub, "up")
        _run(*within, "address", "add", f"{self.addresses[name]}/24", "dev", INTERFACE)
        _run(*within, "link", "set", "lo", "up")
        _run(*within, "link", "set", INTERFACE, "up")
        _run(*within, "route", "add", "default", "via", gateway)
        shape = ("root", "tbf", "rate", f"{mbps:g}mbit", "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")
        _run("tc", "qdisc", "add", "dev", hub, *shape)
        _run("tc", "-netns", name, "qdisc", "add", "dev", INTERFACE, *shape)

    def _name_hosts(self) -> None:
        """Let all find each other by name: programs advertise their host's name."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.addresses.items())]
        with tempfile.NamedTemporaryFile("w", prefix="hosts-") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.chmod(file.name, 0o644)
            _run("mount", "--bind", file.name, "/etc/hosts")  # in this mount namespace; the file lives as long


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(words)} failed: {done.stderr.strip()}. Are network namespaces allowed here?")


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library. Raises ConfigError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        raise ConfigError(f"{name} failed: {os.strerror(ctypes.get_errno())}. Are network namespaces allowed here?")


def main() -> None:
    name, *arguments = sys.argv[1:]
    descriptor = os.open(_NAMED / name, os.O_RDONLY)
    _call("setns", descriptor, _NEW_NET)
    os.close(descriptor)
    _call("unshare", _NEW_UTS)
    socket.sethostname(name)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
