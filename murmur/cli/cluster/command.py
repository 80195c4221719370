"""`murmur cluster`: a run among members who trust each other, over one bucket."""

import argparse
import json
import os
import sys
from pathlib import Path

from murmur.node.config.settings import ClusterConfig, add_flags, plain_key
from murmur.protocol.errors import ConfigError

SECRET = "MURMUR_BUCKET__SECRET_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="put a run into a bucket, and write the token that makes members")
    create.add_argument("name", help="name of the run: a-z, 0-9 and '-'; its token is written to NAME.token")
    create.add_argument("--spec", default="tiny", help="a preset, or a file (default %(default)s)")
    create.add_argument("--data", type=Path, required=True, help="folder of tokenised shards (murmur shards build)")
    create.add_argument("--bucket.endpoint", dest="endpoint", required=True, help="S3 endpoint of the shared bucket")
    create.add_argument("--bucket.name", dest="bucket", required=True, help="its name")
    create.add_argument(
        "--bucket.access_key", dest="access_key", required=True, help="access key id; secret: " + SECRET
    )
    create.add_argument("--local", action="store_true", help="allow plain http: a store here, or on a private network")
    create.add_argument("--seed", type=int, default=0, help="seed of theta_0 (default %(default)s)")
    create.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="where theta_0's honest round is trained; `murmur torchrun` gives it several GPUs (default %(default)s)",
    )
    invite = actions.add_parser("invite", help="show the token: anyone who holds it is a member")
    invite.add_argument("name", help="of the run")
    status = actions.add_parser("status", help="show where each member is, and the last rounds")
    status.add_argument("--token-file", type=Path, required=True, help="file with the token")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    _add_requests(actions)
    doctor = actions.add_parser("doctor", help="check everything that a member needs, and say what to fix")
    doctor.description = (
        "Check everything that a member needs: machine, token, bucket, run, links, disk and speed. Test "
        "objects are deleted from the bucket afterwards. The exit status is 1 when a check fails."
    )
    add_flags(doctor, ClusterConfig)
    doctor.add_argument("--json", action="store_true", help='print one JSON object: {"checks": [..]}')
    demo = actions.add_parser("demo", help="run a store and members on this machine, and kill members meanwhile")
    demo.add_argument("--members", type=int, default=4, help="members (default %(default)s)")
    demo.add_argument(
        "--kill",
        type=int,
        default=2,
        help="how often a member is killed (kill -9), at random moments (default %(default)s)",
    )
    demo.add_argument("--spec", default="tiny", help="a preset, or a file (default %(default)s)")
    demo.add_argument("--rounds", type=int, default=12, help="rounds (default %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="seed of theta_0 and of the kills (default %(default)s)")
    demo.add_argument("--folder", type=Path, help="run folder (default runs/<time>)")
    demo.add_argument("--json", action="store_true", help="print the result as one JSON object")


def _add_requests(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    drain = actions.add_parser("drain", help="ask a member to leave after its current round")
    drain.add_argument("name", help="of the member")
    amend = actions.add_parser("amend", help="change settings from the round after the next record on")
    amend.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="TABLE.FIELD=VALUE",
        help="such as inner.peak_lr=1e-4 or cluster.silent_seconds=60; tables inner, outer and cluster",
    )
    close = actions.add_parser("close", help="end the run: the next record is the last one")
    close.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (drain, amend, close):
        parser.add_argument("--token-file", type=Path, required=True, help="file with the token")
    rotate = actions.add_parser("rotate", help="write the token again, with a new key of the bucket")
    rotate.add_argument("name", help="name of the run: its token is in NAME.token")
    rotate.add_argument(
        "--bucket.access_key", dest="access_key", required=True, help="the new access key id; secret: " + SECRET
    )


def run(options: argparse.Namespace) -> int:
    """Run the action. Raises ConfigError, StorageError."""
    actions = {"create": _create, "invite": _invite, "status": _status, "doctor": _doctor, "demo": _demo}
    return actions.get(options.action, _request)(options)


def _create(options: argparse.Namespace) -> int:
    from murmur.cli.cluster.create import create
    from murmur.node.program.shared import on_ranks

    token_file = Path(f"{options.name}.token")
    if token_file.exists():
        raise ConfigError(f"{token_file} exists already: share that token, or choose another name")
    secret = _secret_key()
    on_ranks("auto", options.device, lambda ranks: create(options, secret, token_file, ranks))
    return 0


def _invite(options: argparse.Namespace) -> int:
    from murmur.cluster.group_keys import parse_token, read_token

    line = read_token(Path(f"{options.name}.token")).strip()
    parse_token(line)
    sys.stdout.write(line + "\n")
    return 0


def _status(options: argparse.Namespace) -> int:
    from murmur.cluster.group_keys import parse_token, read_token

    token = parse_token(read_token(options.token_file))
    from murmur.cli.cluster.status import lines, look  # torch, which a wrong file should not wait for
    from murmur.cli.export.exports import tell

    found = look(token, tell)
    sys.stdout.write(json.dumps(found) + "\n" if options.json else "".join(f"{line}\n" for line in lines(found)))
    return 0


def _request(options: argparse.Namespace) -> int:
    from murmur.cli.cluster import requests

    if options.action == "rotate":
        return requests.rotate(options, _secret_key())
    requested = {"drain": requests.drain, "amend": requests.amend, "close": requests.close}
    return requested[options.action](options)


def _secret_key() -> str:
    secret = os.environ.get(SECRET)
    if not secret:
        raise ConfigError(
            f"the bucket's secret is missing. Set it in the environment: export {SECRET}=... A secret must not be "
            "on a command line"
        )
    try:
        return plain_key(secret)
    except ValueError as fault:
        raise ConfigError(f"{SECRET}: {fault}") from None


def _doctor(options: argparse.Namespace) -> int:
    from murmur.cli.cluster.doctor import examine

    return examine(options)


def _demo(options: argparse.Namespace) -> int:
    from murmur.lab.localnet.cluster import play
    from murmur.node.program.process import new_folder
    from murmur.page.folder import open_page

    folder, quiet = new_folder(options.folder), options.json
    page = None if quiet else open_page(folder)
    if page is not None:
        page.begin()
    try:
        result = play(folder, options.members, options.kill, options.rounds, options.seed, options.spec, quiet=quiet)
    finally:
        if page is not None:
            page.close()
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["identical"] and result["rounds"] >= options.rounds else 1
