import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import Layout
from murmur.protocol.types import Digest, PeerId, Reason
from sparseloco import records
from sparseloco.topk import slabs
from sparseloco.wire import Submission, encode, parse, parse_submission, plaintext_bytes
from tests import random_cases
from tests.sparseloco.samples import RAGGED, update_of

FUZZ_CASES = random_cases.CASES
FUZZ_SHAPES = {"matrix": (70, 67), "scalar": (), "vector": (5,)}
THETA = Digest(bytes(range(32)))

VALID = [encode(THETA, update_of(kind, 0, FUZZ_SHAPES)) for kind in ("normal", "tied", "zero", "sparse", "constant")]
FUZZ_LAYOUT = Layout.of(FUZZ_SHAPES, 64)
SIZE = plaintext_bytes(FUZZ_LAYOUT)
WIDE_SHAPES = {"matrix": (64, 384)}
WIDE_LAYOUT = Layout.of(WIDE_SHAPES, 64)


def reencoded(plaintext, layout):
    """Every record decoded and encoded again, as a plaintext."""
    update = parse(plaintext, layout)
    packed = bytearray(layout.records_bytes)
    for tensor in layout:
        for region in slabs(tensor):
            view = records.window(np.frombuffer(packed, dtype=np.uint8), tensor, region)
            view[:] = records.encode(update.chunks(tensor, region), region).reshape(view.shape)
    return plaintext[:32] + bytes(packed)


@st.composite
def damaged(draw):
    data = bytearray(draw(st.sampled_from(VALID)))
    for place in draw(st.lists(st.integers(0, SIZE * 8 - 1), min_size=1, max_size=6)):
        data[place // 8] ^= 1 << place % 8
    return bytes(data)


@st.composite
def spliced(draw):
    left, right = draw(st.sampled_from(VALID)), draw(st.sampled_from(VALID))
    at = draw(st.integers(0, SIZE))
    return left[:at] + right[at:]


hostile = st.one_of(
    damaged(),
    spliced(),
    st.binary(min_size=SIZE, max_size=SIZE),
    st.binary(max_size=2 * SIZE),
    st.builds(lambda data, end: data[:end], st.sampled_from(VALID), st.integers(0, SIZE)),
)


def accepted(plaintext):
    """The update, or None when it is refused for the one reason that bytes can be refused for here."""
    try:
        return parse(plaintext, FUZZ_LAYOUT)
    except InvalidSubmission as fault:
        if fault.reason is Reason.MALFORMED:
            return None
        raise


@settings(max_examples=FUZZ_CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile)
def test_any_bytes_are_either_refused_as_malformed_or_the_one_encoding_of_what_they_say(plaintext):
    update = accepted(plaintext)
    if update is not None:
        assert reencoded(plaintext, FUZZ_LAYOUT) == plaintext
        assert update.norms.whole < 7.5 * SIZE


def test_the_fuzz_corpus_itself_is_valid():
    assert [reencoded(plaintext, FUZZ_LAYOUT) for plaintext in VALID] == VALID


def test_a_full_chunk_takes_82_bytes_at_k_64():
    layout = Layout.of({"t": (64, 64)}, 64)
    assert len(update_of(shapes={"t": (64, 64)}).records) == layout.records_bytes == 82
    assert plaintext_bytes(layout) == 32 + 82


def test_a_submission_carries_who_when_and_from_where():
    update = update_of()
    peer = PeerId(b"p" * 32)
    found = parse_submission(peer, 7, encode(THETA, update), Layout.of(RAGGED, 64))
    assert found == Submission(peer, 7, THETA, update)


# One chunk of 100 elements at k = 160: 4 indices, 4 low bits, 7 buckets. Bits: 11 upper, 16 lower, 8 codes, 5 padding.
SMALL = Layout.of({"t": (10, 10)}, 160)


def small_record(indices, codes=((0, 0), (1, 1), (0, 1), (1, 0)), lo=100, hi=120, padding=0):
    bits = []
    for bucket in range(7):
        bits += [1] * sum(index // 16 == bucket for index in indices) + [0]
    bits += [index >> bit & 1 for index in indices for bit in range(4)]
    bits += [bit for code in codes for bit in code]
    number = sum(bit << place for place, bit in enumerate(bits)) | padding << len(bits)
    return bytes(32) + number.to_bytes(5, "little") + bytes([lo, hi])


def test_the_hand_made_record_decodes_to_what_it_says():
    indices, values = parse(small_record([0, 17, 18, 99]), SMALL).tensor("t")[0]
    low, high = 1.5 * 2.0 ** (98 + 12 - 127), 2.0 ** (98 + 15 - 127)
    assert indices.tolist() == [[0, 17, 18, 99]]
    assert values.tolist() == [[low, -high, high, -low]]


@pytest.mark.parametrize(
    ("plaintext", "detail"),
    [
        (small_record([0, 17, 18]), "exactly k' indices"),
        (small_record([0, 17, 18, 40, 50]), "exactly k' indices"),
        (small_record([0, 17, 18, 100]), "outside its chunk"),
        (small_record([0, 18, 17, 99]), "strictly ascending"),
        (small_record([0, 17, 17, 99]), "strictly ascending"),
        (small_record([0, 17, 18, 99], padding=1), "padding"),
        (small_record([0, 17, 18, 99], padding=16), "padding"),
        (small_record([0, 17, 18, 99], lo=121), "low level is above"),
        (small_record([0, 17, 18, 99], lo=120), "equal levels"),
        (small_record([0, 17, 18, 99], lo=0), "zero level"),
        (small_record([0, 17, 18, 99], codes=[(0, 0)] * 3 + [(1, 0)], lo=0, hi=0), "zero level"),
        (small_record([0, 17, 18, 99])[:-1], "38 bytes"),
        (small_record([0, 17, 18, 99]) + b"\0", "40 bytes"),
        (b"", "0 bytes"),
    ],
)
def test_what_encoding_would_not_produce_is_malformed(plaintext, detail):
    with pytest.raises(InvalidSubmission, match=detail) as caught:
        parse(plaintext, SMALL)
    assert caught.value.reason is Reason.MALFORMED


def test_an_index_beyond_the_last_bucket_is_malformed():
    upper = 0b1110_0000_000 | 0b1_0000_000_000 >> 1  # the last of the 11 upper bits is a one instead of a zero
    plaintext = bytes(32) + upper.to_bytes(5, "little") + bytes([0, 0])
    with pytest.raises(InvalidSubmission):
        parse(plaintext, SMALL)


def test_an_empty_layout_has_a_plaintext_of_the_theta_digest_alone():
    layout = Layout.of({"t": (0, 4)}, 64)
    assert parse(THETA, layout).dense("t").shape == (0, 4)
