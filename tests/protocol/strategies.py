"""Hypothesis strategies for the fields of messages, and for whole ones."""

from hypothesis import strategies as st

from murmur.protocol.types import Commitment, Digest, PeerId, Pointer, PublicPointer, Vote

ROUNDS = st.integers(0, 2**32 - 1)
DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
PEERS = DIGESTS.map(PeerId)
SIGNATURES = st.binary(min_size=64, max_size=64)
PRINTABLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)


def texts(most: int) -> st.SearchStrategy[str]:
    return st.text(PRINTABLE, min_size=1, max_size=most)


def hexes(num_bytes: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=num_bytes, max_size=num_bytes).map(bytes.hex)


R2_POINTERS = st.builds(
    lambda account, bucket, access, secret: Pointer(
        f"https://{account}.r2.cloudflarestorage.com", bucket, access, secret
    ),
    hexes(16),
    texts(63),
    hexes(16),
    hexes(32),
)
HOSTS = st.from_regex(r"\A([a-z0-9-]{1,10}\.){0,3}[a-z][a-z0-9-]{0,8}\Z") | st.sampled_from(
    ["[::1]", "127.0.0.1", "object_store"]
)
ENDPOINTS = st.builds(
    lambda scheme, host, port: f"{scheme}://{host}{port}",
    st.sampled_from(["https", "http"]),
    HOSTS,
    st.just("") | st.integers(1, 65535).filter(lambda port: port not in (80, 443)).map(lambda port: f":{port}"),
)
URL_POINTERS = st.builds(Pointer, ENDPOINTS, texts(40), texts(40), texts(44))
PUBLIC_POINTERS = st.builds(PublicPointer, ENDPOINTS)
POINTERS = R2_POINTERS | URL_POINTERS | PUBLIC_POINTERS
BITMAPS = st.integers(0, 2**256 - 1)
NOTHING = Digest(bytes(32))
VOTES = st.builds(Vote, ROUNDS, BITMAPS, DIGESTS, DIGESTS).filter(lambda vote: vote.state_ref is not None)
ABSTENTIONS = st.builds(Vote, ROUNDS, st.just(0), st.just(NOTHING), st.just(NOTHING))
STATEMENTS = st.builds(Commitment, ROUNDS, DIGESTS) | VOTES | ABSTENTIONS
