"""What the store of a cluster gets to see: no secret of the group, no key of an update, and no update."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from murmur.lab.simulation.cluster import BUCKET, SECRET, Group
from murmur.protocol import keys
from murmur.protocol.cluster import Claim, Drain, MeanPart
from murmur.protocol.messages import ENVELOPE_BYTES, parse_envelope
from murmur.protocol.spec import Exchange
from murmur.protocol.types import DIGEST_BYTES, PeerId
from storage.seal import unseal
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records
from tests.lab.simulation.test_cluster_lies import Kept
from tests.lab.simulation.test_cluster_requests import LAST, SLOWER, owner

PIECE_BYTES, LEAST_VALUES = 16, 6
"""Updates are small here. A piece with fewer different bytes may stand elsewhere by chance."""
Bodies = Mapping[str, Sequence[bytes]]
"""Every version of every object that ever stood in the bucket, by name."""


def play_a_whole_run(watched: Watched) -> Bodies:
    """Six rounds, an amendment, a member that is asked to leave, and the last round."""
    cluster, objects = watched.cluster, Kept()
    for key, value in cluster.store.buckets[BUCKET].items():
        objects[key] = value
    cluster.store.buckets[BUCKET] = objects
    cluster.begin()
    watched.play(has_records(watched, 6))
    assert owner(cluster).amend(1, SLOWER)
    watched.play(has_records(watched, 9))
    leaver = watched.machine(3)
    owner(cluster).drain(leaver.id, Drain(request="ab" * 8))
    watched.play(lambda: not leaver.up)
    assert owner(cluster).amend(2, LAST)
    watched.play(lambda: not any(machine.up or machine.down for machine in cluster.machines), hours=5)
    cluster.close()
    assert_one_history(watched)
    assert watched.records()[-1].amendments == 2
    return {key: [version.data for version in versions] for key, versions in objects.versions.items()}


def sealed(watched: Watched, bodies: Bodies) -> Iterator[tuple[str, bytes]]:
    """The name and the key of each sealed object, as a member derives them from claims and from parts of a mean."""
    cluster, group = watched.cluster, Group(SECRET)
    ledger = owner(cluster)

    def lies_at(round: int, member: PeerId, one: Claim | MeanPart) -> tuple[str, bytes]:
        key = group.wrap(bytes.fromhex(one.key), one.envelope)
        return ledger.payload_key(round, member, key), key

    for name, versions in bodies.items():
        parts = name.split("/")
        for data in versions:
            if name.startswith(keys.all_claims(cluster.run)):
                round, member = int(parts[2]), PeerId(bytes.fromhex(parts[3]))
                yield lies_at(round, member, Claim.parse(data, cluster.run, round, member, group.verify))
            elif "/mean-" in name:
                round, member = int(parts[2]), PeerId(bytes.fromhex(parts[3]))
                yield lies_at(round, member, MeanPart.parse(data, cluster.run, round, member, group.verify))


def pieces(plaintext: bytes) -> list[bytes]:
    """An update, and pieces of it that stand nowhere by chance. It begins with theta's digest, which is public."""
    body = plaintext[DIGEST_BYTES:]
    found = [body[at : at + PIECE_BYTES] for at in range(0, len(body) - PIECE_BYTES + 1, PIECE_BYTES)]
    return [piece for piece in (body, *found) if len(set(piece)) >= LEAST_VALUES]


def shown(bodies: Bodies, secrets: Sequence[bytes]) -> list[str]:
    """Names of the objects that show one of these, in their name or in any version of their bytes."""
    texts = {name: b"\n".join([name.encode(), *versions]) for name, versions in bodies.items()}
    return [name for name, text in texts.items() if any(secret in text for secret in secrets)]


def raw_and_hex(secret: bytes) -> list[bytes]:
    return [secret, secret.hex().encode(), secret.hex().upper().encode()]


@pytest.mark.parametrize("exchange", ["sparse", "int8"])
def test_the_store_sees_no_secret_no_key_and_no_update(tmp_path: Path, exchange: Exchange) -> None:
    watched = Watched(tmp_path, exchange=exchange)
    bodies = play_a_whole_run(watched)
    opens = dict(sealed(watched, bodies))
    assert len(opens) >= 3 * 8 * (2 if exchange == "int8" else 1)
    assert len(set(opens.values())) == len(opens)
    assert shown(bodies, raw_and_hex(bytes.fromhex(SECRET))) == []
    assert shown(bodies, [form for key in opens.values() for form in raw_and_hex(key)]) == []
    updates = list[bytes]()
    for name, key in opens.items():
        for data in bodies[name]:
            found = pieces(unseal(parse_envelope(data[:ENVELOPE_BYTES]), key, data[ENVELOPE_BYTES:]))
            assert found
            updates += found
    assert shown(bodies, updates) == []


@pytest.mark.parametrize("form", raw_and_hex(bytes.fromhex(SECRET)))
def test_what_is_shown_is_found_in_names_and_in_bytes(form: bytes) -> None:
    secrets = raw_and_hex(bytes.fromhex(SECRET))
    assert shown({"run/beat/1": [b"sound", b"before " + form + b" after"]}, secrets) == ["run/beat/1"]
    assert shown({"run/" + form.decode(): [b""]}, secrets) == ["run/" + form.decode()]
    assert shown({"run/beat/1": [b"sound"]}, secrets) == []
