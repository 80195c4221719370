"""`murmur cluster create`: theta_0 is made, the run goes into the bucket, and the token into a file."""

import os
from argparse import Namespace
from pathlib import Path
from shlex import quote

from murmur.cli.run.questions import progress, say, steps
from murmur.cluster.bootstrap import open_shared, require_group
from murmur.cluster.creation import draft, make_token, place, put_up, require_store
from murmur.cluster.group_keys import Group
from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.owner.theta import make_theta
from murmur.protocol.errors import ConfigError
from murmur.training.parallel import Ranks


def create(options: Namespace, secret: str, token_file: Path, ranks: Ranks) -> None:
    """`secret`: of the bucket's access key. Raise ConfigError, StorageError."""
    where = place(options.endpoint, options.bucket, options.access_key, secret, local=options.local)
    bucket = open_shared(where)
    data = Shards.open(options.data)
    named = presets.is_preset(options.spec) and options.spec != "tiny"
    spec = draft(presets.table(options.spec), options.name, data, local=options.local, own_vocabulary=named)
    require_store(bucket)
    say("bucket: it creates an object only where there is none, so it can decide rounds")
    folder = Path(options.name)
    folder.mkdir(exist_ok=True)
    num_steps = spec.inner.steps
    honest = "" if spec.exchange == "int8" else f", and the norms of one honest round of {num_steps} steps"
    say(f"theta_0: {spec.layout.num_parameters:,} parameters{honest}")
    with steps("inner steps") as tell:
        theta = make_theta(folder / "theta", spec, options.seed, data, ranks, lambda step, _: tell(step + 1, num_steps))
    with progress("uploading") as tell:
        sealed = put_up(folder, bucket, spec, options.data, data, theta, tell)
    token = make_token(sealed, where)
    _write_token(token_file, token.encode())  # before the bucket knows its group: only this file has the secret
    try:
        require_group(bucket, sealed.digest, Group(token.secret))
    except ConfigError:
        token_file.unlink()
        raise
    say(f"run {sealed.name} ({sealed.digest.hex()[:16]}) is in the bucket. Anyone who holds {token_file} can join")
    say(f"On each machine: python neurons/member.py --token-file {quote(str(token_file))} --name lab-a")


def _write_token(path: Path, line: str) -> None:
    """For its owner's eyes only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
