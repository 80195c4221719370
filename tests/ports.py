"""What a process and its children listen on, as the system shows it."""

import ipaddress
import os
import re
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> set[int]:
    """The process and all that it has started, however far down."""
    parents = dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pid: int) -> list[str]:
    """Addresses on which the process or a child of it listens, with their ports."""
    mine = set[str]()
    for one in family(pid):
        for file in Path(f"/proc/{one}/fd").glob("*"):
            with suppress(OSError):
                mine |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
    found = list[str]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:
                address, port = fields[1].split(":")
                words = bytes.fromhex(address)
                ordered = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.append(f"{ipaddress.ip_address(ordered)} {int(port, 16)}")
    return sorted(found)


def beyond_loopback(addresses: list[str]) -> list[str]:
    """Those of the addresses that another machine could reach."""
    return [one for one in addresses if not _is_loopback(one.split()[0])]


def _is_loopback(words: str) -> bool:
    address = ipaddress.ip_address(words)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
