"""Creation of a cluster's run: its spec, theta_0 and data in a bucket, and the token that makes members."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from murmur.cluster.group_keys import Token, new_secret
from murmur.configs.presets import without_chain
from murmur.data.shards import Shards
from murmur.owner.draft import NOBODYS_THETA
from murmur.owner.publish import Tell, blobs_of, data_blobs, theta_blobs, upload
from murmur.protocol.cluster import ClusterSpec, build_cluster
from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import fault_lines
from murmur.protocol.types import Digest
from storage.behaviour import CREATES_NOT_ONCE, STORES_THAT_CREATE_ONCE, creates_once
from storage.s3 import RangedBucket

TRIAL_SECONDS = 60.0


def draft(table: Mapping[str, Any], name: str, data: Shards, *, local: bool, own_vocabulary: bool) -> ClusterSpec:
    """Return the spec without theta_0: `table` (of a preset or a file), overridden by the data's values.
    own_vocabulary: use the table's vocabulary; else that of the data's tokenizer. Raises ConfigError with one line for
    each fault."""
    given = without_chain(table)
    model = dict(given.get("model") or {})
    if not own_vocabulary:
        model["vocabulary"] = data.index.vocabulary
    found = {"index": data.digest.hex(), "num_tokens": data.train.num_tokens}
    whole = given | {
        "name": name,
        "local": local,
        "genesis_checkpoint": NOBODYS_THETA,
        "model": model,
        "data": dict(given.get("data") or {}) | found,
    }
    return build_cluster(whole, "the cluster's spec")


def require_store(bucket: RangedBucket) -> None:
    """Raise ConfigError for a store without exclusive creation: it could hold two records of a round."""
    if not creates_once(bucket, timeout_seconds=TRIAL_SECONDS):
        raise ConfigError(f"{CREATES_NOT_ONCE}. Use another store: {STORES_THAT_CREATE_ONCE}")


def put_up(
    folder: Path,
    bucket: RangedBucket,
    spec: ClusterSpec,
    data_from: Path,
    data: Shards,
    theta: Digest,
    tell: Tell = lambda done, total: None,
) -> ClusterSpec:
    """Upload the whole run, the spec last: then the run exists. `theta`: digest of theta_0, which lies in
    `folder`/theta. Return the sealed spec."""
    sealed = build_cluster(spec.model_dump(mode="json") | {"genesis_checkpoint": theta.hex()}, "the cluster's spec")
    path = folder / "spec.json"
    path.write_bytes(sealed.to_bytes())
    blobs = blobs_of(theta_blobs(folder / "theta", theta), data_blobs(data_from, data, whole=True))
    upload(bucket, [*blobs, (sealed.digest, path)], tell)
    return sealed


def make_token(spec: ClusterSpec, bucket: Token) -> Token:
    """Return the token of a new group for this run, at the bucket of `bucket`."""
    return bucket.model_copy(update={"run": spec.digest.hex(), "secret": new_secret()})


def place(endpoint: str, name: str, access_key: str, secret_key: str, *, local: bool) -> Token:
    """Return a token for a bucket that holds no run yet. Raises ConfigError, which never repeats what was given."""
    nothing = Digest(bytes(32)).hex()
    try:
        return Token(
            endpoint=endpoint,
            bucket=name,
            access_key=access_key,
            secret_key=secret_key,
            run=nothing,
            secret=nothing,
            local=local,
        )
    except ValidationError as fault:
        raise ConfigError(f"the bucket's address or key cannot be one:\n{fault_lines(fault)}") from None
