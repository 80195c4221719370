"""One token makes a member; its secret tags and wraps, and stands in no message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.cluster.group_keys import Group, Token, new_secret, parse_token
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest
from tests.cluster.test_decisions import member

TOKEN = Token(
    endpoint="https://store.example",
    bucket="my-run",
    access_key="ours",
    secret_key="a-secret-key",
    run="aa" * 32,
    secret=new_secret(),
)


def test_a_token_is_one_line_and_comes_back() -> None:
    line = TOKEN.encode()
    assert parse_token(f" {line}\n") == TOKEN
    assert len(line.split()) == 1


@given(st.data())
def test_a_token_that_was_cut_or_changed_is_refused_without_being_repeated(data: st.DataObject) -> None:
    line = TOKEN.encode()
    at = data.draw(st.integers(0, len(line) - 1))
    changed = data.draw(st.sampled_from([line[:at], line[:at] + "x" + line[at + 1 :], line + "A", ""]))
    if changed == line:
        return
    with pytest.raises(ConfigError) as refused:
        parse_token(changed)
    assert "murmur cluster invite" in str(refused.value)
    assert len(str(refused.value)) < 120


def test_a_token_shows_no_secret() -> None:
    for shown in (repr(TOKEN), str(TOKEN)):
        assert TOKEN.secret not in shown
        assert TOKEN.secret_key not in shown


def test_tags_are_the_members_and_the_groups() -> None:
    ours, theirs = Group(TOKEN.secret), Group(new_secret())
    signature = ours.signer(member(1)).sign(b"message")
    assert len(signature) == 64
    assert ours.verify(member(1), b"message", signature)
    assert not ours.verify(member(2), b"message", signature)
    assert not ours.verify(member(1), b"messagf", signature)
    assert not theirs.verify(member(1), b"message", signature)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_wrapped_key_is_unwrapped_by_the_group_alone(key: bytes, envelope: bytes) -> None:
    group, pinned = Group(TOKEN.secret), Digest(envelope)
    wrapped = group.wrap(key, pinned)
    assert group.wrap(wrapped, pinned) == key
    assert Group(new_secret()).wrap(wrapped, pinned) != key
