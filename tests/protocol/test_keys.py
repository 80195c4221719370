"""Object keys are distinct and made of numbers and digests only."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol import keys
from murmur.protocol.types import Digest, PeerId

DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
PEERS = DIGESTS.map(PeerId)
ROUNDS = st.integers(0, 2**32 - 1)
BY_ROUND = [keys.payload, keys.reveal, keys.peer_report, keys.report]
BY_PEER = [keys.mirror, keys.mirror_reveal]


def all_keys(run: Digest, round: int, peer: PeerId, digest: Digest) -> list[str]:
    """Every key that the module can make of these four."""
    return [
        *(key(run, round) for key in BY_ROUND),
        *(key(run, round, peer) for key in BY_PEER),
        keys.selection(run, digest),
        keys.wanted(run),
        keys.checkpoints(run),
        keys.blob(digest),
    ]


@given(DIGESTS, ROUNDS, PEERS, DIGESTS)
def test_keys_hold_nothing_but_our_own_votes_numbers_and_hex(
    run: Digest, round: int, peer: PeerId, digest: Digest
) -> None:
    for key in all_keys(run, round, peer, digest):
        assert re.fullmatch(r"[a-z-]+/[0-9a-f]{64}|[0-9a-f]{16}/[a-z-]+(/[0-9a-f]{8,64}){0,2}", key)


@given(DIGESTS, ROUNDS, PEERS, DIGESTS)
def test_only_documents_that_are_kept_up_to_date_and_the_trial_are_ever_replaced(
    run: Digest, round: int, peer: PeerId, digest: Digest
) -> None:
    replaced = {key for key in [*all_keys(run, round, peer, digest), keys.trial()] if not keys.is_final(key)}
    assert replaced == {keys.checkpoints(run), keys.wanted(run), keys.trial()}


@pytest.mark.parametrize("key", ["", "rehearsal", "rehearsal-key", "payload/1", "0123456789abcdef/new/1", "blobs/1"])
def test_what_is_not_known_to_stay_may_be_replaced(key: str) -> None:
    assert not keys.is_final(key)


@given(st.lists(st.tuples(DIGESTS, ROUNDS, PEERS), max_size=4, unique_by=lambda it: (it[0][:8], it[1])))
def test_no_two_objects_share_a_key(objects: list[tuple[Digest, int, PeerId]]) -> None:
    made = [key for run, round, peer in objects for key in all_keys(run, round, peer, run)[:6]]
    assert len(set(made)) == len(made)


@given(DIGESTS, ROUNDS, st.lists(DIGESTS, unique=True, max_size=4))
def test_no_two_peers_and_no_two_digests_share_a_key(run: Digest, round: int, digests: list[Digest]) -> None:
    for digest in digests:
        assert len(set(all_keys(run, round, PeerId(digest), digest))) == 10
    for make in (
        lambda digest: keys.mirror(run, round, digest),
        lambda digest: keys.mirror_reveal(run, round, digest),
        lambda digest: keys.selection(run, digest),
        keys.blob,
    ):
        assert len({make(digest) for digest in digests}) == len(digests)


@given(DIGESTS, PEERS, st.lists(st.integers(0, 10**8 - 1), min_size=2, unique=True))
def test_keys_of_the_first_hundred_million_rounds_sort_like_the_rounds(
    run: Digest, peer: PeerId, rounds: list[int]
) -> None:
    for key in BY_ROUND:
        assert sorted(rounds) == sorted(rounds, key=lambda round: key(run, round))
    assert sorted(rounds) == sorted(rounds, key=lambda round: keys.mirror(run, round, peer))
