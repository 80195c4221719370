"""Where the ranks of one node meet: a key-value store on loopback, which the first rank keeps.

torchrun's own store listens on every interface of the machine, and whoever reaches it can write: a call to the other
ranks, or, with its default rendezvous, a pickle that torchrun itself loads. So the ranks take no more than a port from
it, and `murmur torchrun` (murmur/training/launch.py) keeps one on loopback instead.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast

from loguru import logger
from torch import distributed
from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from murmur.protocol.errors import ConfigError, MurmurError

LOOPBACK = "127.0.0.1"
_INTERFACE = "lo"
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.02
_TELL_SECONDS = 10.0
"""Time after which ranks say for whom they wait."""
_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TCPStore = cast(Callable[..., Store], cast(Any, distributed).TCPStore)
_LISTENS = "0A"


class RankLost(MurmurError):
    """Another rank ended or hangs. It logged the reason itself; this rank cannot continue alone."""


class Calls(Protocol):
    """The part of torch's key-value store that carries the first rank's calls to the others."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def delete_key(self, key: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A process's place among those that were started together, from its environment."""

    rank: int
    local_rank: int
    size: int
    address: str
    port: int
    of_torchrun: bool
    """Whether torchrun keeps a store at `address` and `port`; otherwise the port is free for the first rank."""
    attempt: str
    """Which start of the ranks by one torchrun: its store still has the keys of those before."""


def launched(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return this process's place; None where it is alone.

    Platforms set some of torchrun's variables for their own purposes, so only all of them together are believed. Raises
    ConfigError for values that cannot be.
    """
    given = {name: environment[name] for name in _NAMES if environment.get(name)}
    if "WORLD_SIZE" not in given:
        return None
    if missing := [name for name in _NAMES if name not in given]:
        if given["WORLD_SIZE"] != "1":
            logger.warning(
                "WORLD_SIZE={size} is set without {missing}: torchrun did not start this process, so it trains alone. "
                "For several GPUs of this machine: murmur torchrun --nproc_per_node gpu PROGRAM",
                size=given["WORLD_SIZE"],
                missing=", ".join(missing),
            )
        return None
    try:
        rank, local_rank, size, port = (
            int(given[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
        )
        here = int(environment.get("LOCAL_WORLD_SIZE") or size)
    except ValueError as fault:
        raise ConfigError(f"{', '.join(_NAMES)} are torchrun's, and one is no number ({fault}): unset them") from None
    if size == 1:
        return None
    if not 0 <= rank < size or not 0 < port < 2**16:
        raise ConfigError(f"RANK={rank}, WORLD_SIZE={size}, MASTER_PORT={port} cannot be: unset torchrun's variables")
    if here != size:
        raise ConfigError(
            f"WORLD_SIZE is {size}, and LOCAL_WORLD_SIZE {here}: a node's ranks share one machine's memory. Start one "
            "node a machine, each with its own hotkey and without --nnodes"
        )
    of_torchrun = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(rank, local_rank, size, given["MASTER_ADDR"], port, of_torchrun, attempt)


def forget_platform() -> None:
    """Remove torchrun's variables where they are not torchrun's: libraries would each believe one of them alone."""
    if launched() is None:
        for name in (*_NAMES, "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)


def meet(place: Place) -> Store:
    """Wait until every rank is here; return their store, which only this machine reaches. A signal interrupts the wait.
    Raises RankLost when torchrun ended meanwhile, and ConfigError for a port that is taken."""
    # One machine's ranks need no other interface, whatever its platform has set for its own jobs.
    os.environ |= {"GLOO_SOCKET_IFNAME": _INTERFACE, "NCCL_SOCKET_IFNAME": _INTERFACE}
    board = _board(place) if place.of_torchrun else None
    store = _keep(place, board) if place.rank == 0 else _find(place, board)
    store.set(f"here {place.rank}", "")
    missing = list(range(place.size))

    def all_here() -> bool:
        missing[:] = [rank for rank in missing if not store.check([f"here {rank}"])]
        return not missing

    _wait(place, all_here, lambda: f"ranks {', '.join(map(str, missing))}")
    return store


def _board(place: Place) -> Store:
    """Return torchrun's own store. torch would wait for many minutes for one that has ended, and for no signal."""
    try:
        socket.create_connection((place.address, place.port), timeout=_CONNECT_SECONDS).close()
        return _client(place.address, place.port)
    except (OSError, DistError) as fault:
        raise RankLost(f"torchrun does not answer ({fault}): it ended while this rank was starting") from None


def _keep(place: Place, board: Store | None) -> Store:
    """First rank: open the store on loopback, and leave its port where the others look."""
    try:
        listener = socket.create_server((LOOPBACK, 0 if board is not None else place.port))
    except OSError as fault:
        raise ConfigError(
            f"MASTER_PORT {place.port} cannot be used ({fault.strerror}): another program has it, or another rank 0 of "
            f"WORLD_SIZE={place.size}. Without torchrun, unset RANK and WORLD_SIZE"
        ) from None
    port = listener.getsockname()[1]
    store = keep_store(listener)
    if board is not None:
        board.set(_port_key(place), str(port))
        if is_open(place.port):
            logger.warning(
                "torchrun's own store listens on every interface: whoever reaches port {port} of this machine can run "
                "code in it. Start with `murmur torchrun`, which listens on loopback only",
                port=place.port,
            )
    return store


def keep_store(listener: socket.socket) -> Store:
    """Return a store whose server listens on this socket, which is its own from now on."""
    port = listener.getsockname()[1]
    return _TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )


def _find(place: Place, board: Store | None) -> Store:
    """Other ranks: connect to the first rank's store."""
    ports = [] if board is not None else [place.port]

    def is_there() -> bool:
        try:
            if board is not None and not ports:
                if not board.check([_port_key(place)]):
                    return False
                ports.append(int(board.get(_port_key(place))))
            socket.create_connection((LOOPBACK, ports[0]), timeout=_CONNECT_SECONDS).close()
        except DistError as fault:
            raise RankLost(f"torchrun does not answer ({fault}): it ended while this rank was starting") from None
        except OSError:
            return False
        return True

    _wait(place, is_there, lambda: "rank 0")
    return _client(LOOPBACK, ports[0])


def _client(address: str, port: int) -> Store:
    wait = timedelta(seconds=_CONNECT_SECONDS)
    return _TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=wait)


def _port_key(place: Place) -> str:
    return f"murmur port {place.attempt}"


def _wait(place: Place, happened: Callable[[], bool], whom: Callable[[], str]) -> None:
    tell = time.monotonic() + _TELL_SECONDS
    while not happened():
        if time.monotonic() > tell:
            tell += _TELL_SECONDS
            logger.info(
                "rank {rank} of WORLD_SIZE={size} waits for {whom}; without torchrun nobody starts them: unset RANK "
                "and WORLD_SIZE then",
                rank=place.rank,
                size=place.size,
                whom=whom(),
            )
        time.sleep(_POLL_SECONDS)


def is_open(port: int) -> bool:
    """Whether something of this machine listens at this port beyond loopback, as far as the system shows it."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            address, at = local.split(":")
            if state == _LISTENS and int(at, 16) == port and not _is_loopback(address):
                return True
    return False


def _is_loopback(address: str) -> bool:
    """Of an address as the system's table writes it: words of four bytes, the lowest byte first."""
    in_four = len(address) == 8 or address.startswith("0" * 16 + "FFFF0000")
    return (in_four and address.endswith("7F")) or address == "0" * 24 + "01000000"
