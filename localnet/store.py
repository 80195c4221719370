"""The local network's S3 server: moto on 127.0.0.1 with IAM enforced, one bucket and two keys per peer.

    python -m localnet.store --port 0 --ready-file FILE --users users.json

users.json is a list of names. Each gets a bucket of that name, a key that may read and write it, and a key that may
only read it. FILE is written, readable by its owner alone, once the server enforces them: `read_ready` parses it.

Objects are kept beside FILE, in FILE's name with .sqlite (localnet/objects.py). Started again with the same words the
server is the same one: address, credentials, objects.

A rehearsal, not a store: objects also live in memory (the process grows by what is stored), and uploads are not checked
against their checksums. May only listen on the loopback address.
"""

import argparse
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localnet.objects import Objects
from protocol.errors import ConfigError
from protocol.types import Pointer

HOST = "127.0.0.1"
_ADMIN = "admin"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_READ = ["s3:GetObject", "s3:ListBucket"]
_WRITE = [
    *_READ,
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
    "s3:ListBucketMultipartUploads",
]


@dataclass(frozen=True, slots=True)
class StoreUser:
    """A peer's bucket with both of its credentials."""

    bucket: str
    write_access_key: str
    write_secret_key: str = field(repr=False)
    read_access_key: str
    read_secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoreReady:
    """A running store: where it listens and whom it knows, by name."""

    endpoint: str
    users: dict[str, StoreUser]

    def pointer(self, name: str) -> Pointer:
        """What the peer publishes: its bucket and the read-only credential."""
        user = self.users[name]
        return Pointer(self.endpoint, user.bucket, user.read_access_key, user.read_secret_key)


def read_ready(path: Path) -> StoreReady:
    """Parse the file that a store writes when it is ready."""
    body = json.loads(path.read_text())
    return StoreReady(body["endpoint"], {name: StoreUser(**user) for name, user in body["users"].items()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m localnet.store", description="S3 server of a local network")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--ready-file", type=Path, required=True, help="written (0600) when the server is ready")
    parser.add_argument("--users", type=Path, required=True, help="JSON list of names, one bucket each")
    options = parser.parse_args(arguments)
    try:
        names = _parse_names(options.users)
        before = read_ready(options.ready_file) if options.ready_file.exists() else None
        port = options.port if before is None else urlsplit(before.endpoint).port or 0
        gate = _Gate(Objects(options.ready_file.with_suffix(".sqlite")))
        server, endpoint = _serve(port, gate)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    users = _create_users(endpoint, names, {} if before is None else before.users)
    gate.objects.restore()
    _enforce()
    gate.open = True
    _write_ready(options.ready_file, StoreReady(endpoint, users))
    done.wait()
    server.shutdown()
    return 0


def _parse_names(path: Path) -> list[str]:
    try:
        names = json.loads(path.read_text())
    except (OSError, ValueError):
        raise ConfigError(f"{path}: expected a JSON list of names") from None
    if not isinstance(names, list) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise ConfigError(f"{path}: expected a JSON list of names of 3 to 63 characters of a-z, 0-9 and '-'")
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: a name stands there twice")
    return names


class _Gate:
    """What every request passes on its way to moto, and every change on its way back."""

    def __init__(self, objects: Objects) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.objects = objects
        self.open = False
        """Before that only our own set-up is let in: peers of a store that comes back may be knocking already."""
        self._application = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path, signed = environ.get("PATH_INFO", ""), environ.get("HTTP_AUTHORIZATION", "")
        if not self.open and f"Credential={_ADMIN}/" not in signed:
            return _refuse(start_response, "503 Service Unavailable")
        # moto's own control pages would let anybody switch the enforcement off, and it crashes on unsigned requests.
        if path.lstrip("/").startswith("moto-api") or not signed:
            return _refuse(start_response, "403 Forbidden")
        answer = self._application(environ, start_response)
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
            self.objects.keep(path)
        return answer


def _refuse(start_response: Any, status: str) -> list[bytes]:
    start_response(status, [("Content-Length", "0"), ("Connection", "close")])
    return [b""]


def _serve(port: int, gate: _Gate) -> tuple[Any, str]:
    """Start moto in threads of this process; nothing is enforced yet."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    class Handler(MotoRequestHandler):  # type: ignore[misc]
        protocol_version = "HTTP/1.1"  # the default 1.0 closes the connection after every request
        wbufsize = -1  # headers and body in one packet: unbuffered, each answer waits for a delayed ACK
        disable_nagle_algorithm = True

    try:
        server = make_server(HOST, port, gate, threaded=True, request_handler=Handler)
    except (OSError, SystemExit):
        raise ConfigError(f"port {port} on {HOST} is taken: pick another or 0") from None
    threading.Thread(target=server.serve_forever, name="store", daemon=True).start()
    return server, f"http://{HOST}:{server.server_port}"


def _create_users(endpoint: str, names: Sequence[str], before: Mapping[str, StoreUser]) -> dict[str, StoreUser]:
    """Every peer's bucket, read-write key and read-only key; those that it had before, if it had any."""
    import boto3

    # moto asks for some credential even while it does not check it; it can't create buckets in region "auto".
    admin: dict[str, Any] = {
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": _ADMIN,
        "aws_secret_access_key": _ADMIN,
    }
    s3, iam = boto3.client("s3", **admin), boto3.client("iam", **admin)
    for name in names:
        s3.create_bucket(Bucket=name)
    users = {name: _create_user(iam, name) for name in names}
    for user in before.values():
        _give_back(f"{user.bucket}-write", user.write_access_key, user.write_secret_key)
        _give_back(f"{user.bucket}-read", user.read_access_key, user.read_secret_key)
    return {**users, **before}


def _give_back(user: str, access_key: str, secret_key: str) -> None:
    """The key that the IAM user had before: its API makes random ones only."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.iam.models import iam_backends

    (key,) = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].get_user(user).access_keys
    key.access_key_id, key.secret_access_key = access_key, secret_key


def _create_user(iam: Any, name: str) -> StoreUser:
    """Two IAM users for the bucket `name`: `<name>-write` and `<name>-read`, each with a key and an own policy."""

    def key(user: str, actions: list[str]) -> tuple[str, str]:
        iam.create_user(UserName=user)
        resources = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
        statement = [{"Effect": "Allow", "Action": actions, "Resource": resources}]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
        iam.put_user_policy(UserName=user, PolicyName="bucket", PolicyDocument=policy)
        made = iam.create_access_key(UserName=user)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    return StoreUser(name, *key(f"{name}-write", _WRITE), *key(f"{name}-read", _READ))


def _enforce() -> None:
    """From now on moto checks signatures and policies; until here it let everything through."""
    from moto import settings

    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0


def _write_ready(path: Path, ready: StoreReady) -> None:
    """Atomically and with mode 0600: it holds secrets, and whoever sees the file may rely on it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(ready), file)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
