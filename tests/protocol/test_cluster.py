"""A cluster's spec, and its documents: exact inverses, and strangers' bytes become reasons."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.cluster.group_keys import Group
from murmur.protocol.cluster import GROUP, Beat, Claim, ClusterSpec, Record, build_cluster
from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.messages import NO_ROUND, encode_document, link_of
from murmur.protocol.types import Digest
from tests.cluster.test_decisions import beat, claim, member, record
from tests.specs import toy_table

RUN = Digest(b"r" * 32)
US, THEM = Group("11" * 32), Group("22" * 32)


def cluster_table(**changes: object) -> dict[str, object]:
    table = toy_table()
    for name in ("chain", "netuid", "owner", "clock", "gauntlet"):
        del table[name]
    return table | {"cluster": dict(changes)}


def test_documents_of_the_group_come_back_and_nobody_elses_do() -> None:
    found, known = record((member(1), 5, 1.0), (member(2), 5, 2.0)), member(4)
    data = found.encode(RUN, 7, US.signer())
    assert Record.parse(data, RUN, 7, GROUP, US.verify) == found
    assert Claim.parse(claim().encode(RUN, 7, US.signer(known)), RUN, 7, known, US.verify) == claim()
    assert Beat.parse(beat(3).encode(RUN, NO_ROUND, US.signer(known)), RUN, NO_ROUND, known, US.verify) == beat(3)
    for parse in (
        lambda: Record.parse(data, RUN, 8, GROUP, US.verify),
        lambda: Record.parse(data, Digest(bytes(32)), 7, GROUP, US.verify),
        lambda: Record.parse(data, RUN, 7, GROUP, THEM.verify),
        lambda: Claim.parse(claim().encode(RUN, 7, US.signer(known)), RUN, 7, member(5), US.verify),
        lambda: Beat.parse(claim().encode(RUN, 0, US.signer(known)), RUN, NO_ROUND, known, US.verify),
    ):
        with pytest.raises(InvalidMessage):
            parse()


@given(st.binary(max_size=400))
def test_any_bytes_are_a_document_or_an_invalid_message(data: bytes) -> None:
    for parse in (
        lambda: Record.parse(data, RUN, 7, GROUP, US.verify),
        lambda: Claim.parse(data, RUN, 7, member(1), US.verify),
        lambda: Beat.parse(data, RUN, NO_ROUND, member(1), US.verify),
    ):
        with pytest.raises(InvalidMessage):
            parse()


@pytest.mark.parametrize(
    "change",
    [
        {"updates": []},
        {"theta": "AA" * 32},
        {"extra": 1},
        {"by": "aa"},
        lambda body: body | {"updates": body["updates"][::-1]},
        lambda body: body | {"updates": [body["updates"][0]] * 2},
        lambda body: body | {"updates": [body["updates"][0] | {"theta": "cc" * 32}]},
        lambda body: body | {"updates": [body["updates"][0] | {"steps": 0}]},
        lambda body: body | {"updates": [body["updates"][0] | {"key": "bb"}]},
        lambda body: body | {"updates": [body["updates"][0] | {"loss": "low"}]},
    ],
)
def test_a_record_of_a_member_that_is_no_valid_one_is_refused(change: object) -> None:
    """Members are trusted not to attack, nothing else."""
    body = json.loads(record((member(1), 5, 1.0), (member(2), 5, 2.0)).model_dump_json())
    body = change(body) if callable(change) else body | change  # type: ignore[operator]
    with pytest.raises(InvalidMessage):
        Record.parse(encode_document("record", RUN, 7, body, US.signer(GROUP)), RUN, 7, GROUP, US.verify)


def test_a_claim_of_a_loss_that_is_no_number_is_refused_and_one_without_a_loss_is_not() -> None:
    for loss in (3.25, -1.0, None):
        told = claim().model_copy(update={"loss": loss})
        assert Claim.parse(told.encode(RUN, 7, US.signer(member(1))), RUN, 7, member(1), US.verify) == told
    before = {name: value for name, value in claim().model_dump(mode="json").items() if name != "loss"}
    data = encode_document("claim", RUN, 7, before, US.signer(member(1)))
    assert Claim.parse(data, RUN, 7, member(1), US.verify) == claim()
    for loss in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            Claim.model_validate(claim().model_dump() | {"loss": loss})


def test_a_records_link_is_of_what_is_applied_and_not_of_who_closed_it() -> None:
    one = record((member(1), 5, 1.0), (member(2), 5, 2.0))
    other = one.model_copy(update={"by": member(9)})
    assert link_of(one.selection(RUN, 7)) == link_of(other.selection(RUN, 7))
    assert link_of(one.selection(RUN, 7)) != link_of(one.selection(RUN, 8))
    assert [peer for peer, _ in one.selection(RUN, 7).contributing] == [member(1), member(2)]


def test_a_spec_has_a_cluster_or_a_chain_and_times_that_fit() -> None:
    spec = build_cluster(cluster_table(keep_rounds=30), "toy.toml")
    assert ClusterSpec.model_validate_json(spec.to_bytes()) == spec
    assert spec.cluster.keep_rounds == 30
    for table, words in (
        (cluster_table() | {"netuid": 1}, "netuid: Extra inputs"),
        (cluster_table(silent_seconds=10.0), "silent_seconds 10 is less than three beats"),
        (cluster_table(keep_rounds=10), "less than two intervals of checkpoints"),
        (cluster_table(grace=2.0), "cluster.grace"),
    ):
        with pytest.raises(ConfigError, match=words):
            build_cluster(table, "toy.toml")
