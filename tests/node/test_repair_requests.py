"""What somebody says that it lacks is a stranger's list: parsed whole, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.lab.simulation.signer import HashSigner, hash_verify
from murmur.node.sync.repair_requests import DOCUMENT_MAX_BYTES, MOST_WANTED, encode_wanted, parse_wanted
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import encode_signed
from murmur.protocol.types import Digest, PeerId

RUN = Digest(bytes(range(32)))
SIGNER = HashSigner("somebody")
PLACES = st.tuples(st.integers(0, 2**32 - 1), st.binary(min_size=32, max_size=32).map(PeerId))


@given(st.frozensets(PLACES, max_size=20))
def test_a_list_is_read_as_it_was_said(wanted: frozenset[tuple[int, PeerId]]) -> None:
    said = encode_wanted(wanted, RUN, SIGNER)
    assert parse_wanted(said, RUN, SIGNER.peer, hash_verify) == wanted


def test_the_longest_list_fits_and_no_longer_one_is_said() -> None:
    wanted = {(2**32 - 1, PeerId(number.to_bytes(32, "big"))) for number in range(MOST_WANTED + 5)}
    said = encode_wanted(wanted, RUN, SIGNER)
    assert len(said) <= DOCUMENT_MAX_BYTES
    assert parse_wanted(said, RUN, SIGNER.peer, hash_verify) == frozenset(sorted(wanted)[:MOST_WANTED])


def record(round: int, number: int) -> bytes:
    return round.to_bytes(4, "little") + number.to_bytes(32, "big")


OTHERS = {
    "cut short": record(1, 1)[:-1],
    "a byte more": record(1, 1) + b"\0",
    "one twice": record(1, 1) * 2,
    "not in order": record(2, 1) + record(1, 2),
    "more than a selection can name": b"".join(record(1, number) for number in range(MOST_WANTED + 1)),
    "JSON": b'{"payloads":[]}',
    "nested brackets": b'{"payloads":' + b"[" * 16_000 + b"]" * 16_000 + b"}",
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS.keys())
def test_other_lists_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_wanted(encode_signed("wanted", RUN, 0, content, SIGNER), RUN, SIGNER.peer, hash_verify)
    in_order = record(1, 1) + record(1, 2) + record(2, 1)
    said = encode_signed("wanted", RUN, 0, in_order, SIGNER)
    assert len(parse_wanted(said, RUN, SIGNER.peer, hash_verify)) == 3


def test_nobody_speaks_for_somebody_else() -> None:
    said = encode_wanted([(1, SIGNER.peer)], RUN, SIGNER)
    for run, peer in ((Digest(bytes(32)), SIGNER.peer), (RUN, HashSigner("another").peer)):
        with pytest.raises(InvalidMessage):
            parse_wanted(said, run, peer, hash_verify)
