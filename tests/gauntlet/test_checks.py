"""Every reason by construction, their order, and that no peer's bytes touch another peer's result."""

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.checks import CheckFunctions, Gathered
from gauntlet.commitment import is_judged, is_late
from murmur.protocol.merkle import sections_root
from murmur.protocol.messages import ENVELOPE_BYTES, parse_envelope
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Reason, Slot, Uid, Vote
from sparseloco.outer import OuterState
from sparseloco.update import Update
from sparseloco.wire import encode
from tests.gauntlet.world import (
    CLOCK,
    FUNCTIONS,
    SPEC,
    THETA,
    FakeSigner,
    Miner,
    check,
    digest,
    proof_of,
    sketches,
    verify,
)

HONEST = [Miner(1), Miner(2), Miner(3)]
BAD = Miner(9)


def reason_of(item, **options):
    """The bad peer's reason beside three honest peers, which all pass."""
    result = check([*(miner.gathered() for miner in HONEST), item], **options)
    assert set(result.passed) - {item.peer.id} == {miner.id for miner in HONEST}
    rejection = result.rejected.get(item.peer.id)
    assert (rejection is None) == (item.peer.id in result.passed)
    return None if rejection is None else rejection.reason


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_an_honest_peer_passes_with_the_update_it_sent():
    result = check([miner.gathered() for miner in HONEST])
    assert result.rejected == {}
    assert [result.passed[m.id].update.records for m in HONEST] == [m.update.records for m in HONEST]
    assert result.committed == {miner.id for miner in HONEST}


def garbage() -> bytes:
    records = b"".join(sha256(b"%d" % i).digest() for i in range(1 + SPEC.layout.records_bytes // 32))
    return THETA + records[: SPEC.layout.records_bytes]


def rejected_cases():
    sealed = BAD.sealed()
    thief = Miner(8)
    foreign = BAD.sealed(signer=FakeSigner(thief.id))
    yield "no slot", replace(BAD.gathered(), peer=Peer(BAD.id, Uid(9), 0, False)), Reason.MISSING
    yield (
        "another round's commitment",
        replace(BAD.gathered(), peer=Miner(9, round=1).peer(sealed.digest, 130)),
        "MISSING",
    )
    yield "a commitment after D", replace(BAD.gathered(), peer=BAD.peer(sealed.digest, 141)), Reason.MISSING
    yield "late", replace(BAD.gathered(), peer=BAD.peer(None), late=True), Reason.LATE
    yield "bytes gone", BAD.gathered(payload=None), Reason.MISSING
    yield "another object", BAD.gathered(payload=Miner(9, seed=5).sealed(key=bytes(32)).object), Reason.MISSING
    yield (
        "a flipped bit of ciphertext",
        BAD.gathered(payload=flipped(sealed.object, SPEC.object_bytes - 1)),
        Reason.MISSING,
    )
    alone = replace(BAD.gathered(foreign), payload=foreign.object[:ENVELOPE_BYTES])
    yield "another's envelope, of which no more is read", alone, Reason.UNSIGNED
    alone = replace(BAD.gathered(), payload=sealed.object[:ENVELOPE_BYTES])
    yield "an object that is nothing but its envelope", alone, Reason.WRONG_SIZE
    yield "a server that claims more", BAD.gathered(payload=None, wrong_size=1 << 40), Reason.WRONG_SIZE
    yield "truncated", BAD.gathered(payload=sealed.object[:-1]), Reason.WRONG_SIZE
    yield "empty", BAD.gathered(payload=b""), Reason.WRONG_SIZE
    junk = bytes(SPEC.object_bytes)
    yield (
        "no envelope",
        BAD.gathered(peer=BAD.peer(Digest(sha256(junk[:ENVELOPE_BYTES]).digest())), payload=junk),
        "UNSIGNED",
    )
    yield "another's envelope", BAD.gathered(foreign), Reason.UNSIGNED
    yield "a foreign signature", bad_signature(), Reason.UNSIGNED
    yield "another run", BAD.resigned(run=digest("other")), Reason.WRONG_RUN
    yield "another round", BAD.resigned(round=1), Reason.WRONG_RUN
    yield "no reveal", BAD.gathered(reveal=None), Reason.UNREVEALED
    yield "an unparseable reveal", BAD.gathered(reveal=b"key"), Reason.UNREVEALED
    yield "a reveal of another round", BAD.gathered(reveal=BAD.reveal(sealed.key, round=1)), Reason.UNREVEALED
    yield "a reveal of another peer", BAD.gathered(reveal=BAD.reveal(sealed.key, peer=thief.id)), Reason.UNREVEALED
    yield "a badly signed reveal", BAD.gathered(reveal=BAD.reveal(sealed.key, signer=thief.signer)), "UNREVEALED"
    yield "the wrong key", BAD.gathered(reveal=BAD.reveal(bytes(32))), Reason.BAD_KEY
    yield "another theta", BAD.gathered(BAD.sealed(encode(digest("old"), BAD.update))), Reason.OUT_OF_SYNC
    wrong_proof = BAD.reveal(sealed.key, proof=proof_of(thief.id))
    yield "a copied proof", BAD.gathered(reveal=wrong_proof), Reason.OUT_OF_SYNC
    yield "random records", BAD.gathered(BAD.sealed(garbage())), Reason.MALFORMED
    yield "a huge update", Miner(9, scale=1000.0).gathered(), Reason.NORM
    yield "a tiny update", Miner(9, scale=0.001).gathered(), Reason.NORM
    yield "an update of zeros", Miner(9, scale=0.0).gathered(), Reason.NORM


def bad_signature() -> Gathered:
    sealed = BAD.sealed()
    envelope = flipped(sealed.envelope, ENVELOPE_BYTES - 1)
    return BAD.gathered(replace(sealed, envelope=envelope))


@pytest.mark.parametrize(("item", "reason"), [pytest.param(i, r, id=name) for name, i, r in rejected_cases()])
def test_each_fault_has_its_reason_and_leaves_the_others_alone(item, reason):
    assert reason_of(item) == reason


def test_a_stolen_ciphertext_under_the_thiefs_envelope_decrypts_to_nothing():
    victim = HONEST[0].sealed()
    thief = Miner(9)
    stolen = thief.resigned(key_hash=Digest(sha256(victim.key).digest()))
    envelope = stolen.payload[:ENVELOPE_BYTES]
    signed = replace(parse_envelope(envelope), root=sections_root(victim.ciphertext))
    signed = replace(signed, signature=thief.signer.sign(signed.signed_part))
    item = Gathered(
        thief.peer(Digest(sha256(signed.encode()).digest())),
        signed.encode() + victim.ciphertext,
        None,
        thief.reveal(victim.key),
    )
    assert reason_of(item) == Reason.OUT_OF_SYNC


def test_the_first_failing_check_in_the_stated_order_is_the_reason():
    """Faults piled up: each one removed uncovers the next reason."""
    old_theta = BAD.sealed(encode(digest("old"), BAD.update), round=1)
    steps = [
        (replace(BAD.gathered(old_theta, reveal=None), peer=BAD.peer(None)), Reason.MISSING),
        (replace(BAD.gathered(old_theta, reveal=None), peer=BAD.peer(None), late=True), Reason.LATE),
        (BAD.gathered(old_theta, reveal=None, late=True, payload=old_theta.object + b"x"), Reason.WRONG_SIZE),
        (BAD.gathered(BAD.sealed(garbage(), round=1, signer=Miner(8).signer), reveal=None), Reason.UNSIGNED),
        (BAD.gathered(old_theta, reveal=None), Reason.WRONG_RUN),
        (BAD.gathered(BAD.sealed(garbage()), reveal=b""), Reason.UNREVEALED),
        (BAD.gathered(BAD.sealed(bytes(len(garbage()))), reveal=BAD.reveal(bytes(32))), Reason.BAD_KEY),
        (BAD.gathered(BAD.sealed(digest("old") + garbage()[32:])), Reason.OUT_OF_SYNC),
        (BAD.gathered(BAD.sealed(garbage())), Reason.MALFORMED),
    ]
    assert [reason_of(item) for item, _ in steps] == [reason for _, reason in steps]
    order = list(Reason)
    assert [order.index(reason) for _, reason in steps] == sorted(order.index(reason) for _, reason in steps)


def test_norms_are_judged_against_the_slow_average_once_there_is_one():
    usual = HONEST[0].update.norms.whole
    outer = OuterState(3, (1.0,) * len(SPEC.layout.tensors), usual / 20)
    result = check([miner.gathered() for miner in HONEST], outer=outer)
    assert {rejection.reason for rejection in result.rejected.values()} == {Reason.NORM}
    assert len(result.rejected) == 3
    inside = replace(outer, whole=usual / 8)
    assert check([miner.gathered() for miner in HONEST], outer=inside).rejected == {}


def test_a_majority_of_dust_is_out_of_bounds_in_a_first_round_whose_norms_were_measured():
    dust = [Miner(20 + number, scale=1e-3) for number in range(4)]
    items = [miner.gathered() for miner in (*HONEST, *dust)]
    norms = Miner(7, seed=77).update.norms
    result = check(items, outer=OuterState(0, norms.tensors, norms.whole))
    assert {peer: r.reason for peer, r in result.rejected.items()} == {miner.id: Reason.NORM for miner in dust}
    # What the measurement is for: the median of whoever is registered is the crowd's.
    assert set(check(items).rejected) == {miner.id for miner in HONEST}


def test_equal_and_nearly_equal_payloads_of_a_round_are_twins_and_nobody_is_at_fault_yet():
    twin, near = Miner(4, seed=1), Miner(5)
    nearly = near.gathered(near.sealed(encode(THETA, perturbed(HONEST[0].update, make_other(), 0.8))))
    result = check([*(miner.gathered() for miner in HONEST), twin.gathered(), nearly])
    same = {HONEST[0].id, twin.id, near.id}
    assert result.rejected == {}
    assert result.twins == {peer: same - {peer} for peer in same}


def perturbed(update: Update, other: Update, share: float) -> Update:
    """The update with the last records replaced by another's: overlaps about `share`."""
    cut, copied = 0, bytearray(other.records)
    for tensor in update.layout:
        for region in tensor.regions:
            for chunk in range(region.down * region.across):
                at = tensor.offset + region.offset + (chunk // region.across) * region.stride
                at += (chunk % region.across) * region.record_bytes
                if at < share * len(copied):
                    copied[at : at + region.record_bytes] = update.records[at : at + region.record_bytes]
                    cut += 1
    assert cut
    return Update(update.layout, bytes(copied))


def test_a_repost_of_anothers_last_payload_under_todays_theta_is_a_copy_and_the_owner_is_not():
    first = check([miner.gathered() for miner in HONEST])
    now = [replace(miner, round=1) for miner in HONEST]
    for update in (HONEST[0].update, perturbed(HONEST[0].update, make_other(), 0.8)):
        copycat = Miner(9, round=1)
        item = copycat.gathered(copycat.sealed(encode(THETA, update)))
        result = check([*(miner.gathered() for miner in now), item], round=1, history=sketches(first.remember))
        assert {peer: r.reason for peer, r in result.rejected.items()} == {copycat.id: Reason.COPY}


def make_other() -> Update:
    return Miner(7, seed=77).update


def test_an_own_earlier_payload_may_come_again_mostly_but_not_exactly():
    first = check([miner.gathered() for miner in HONEST])
    owner = replace(HONEST[0], round=1)
    mostly = owner.gathered(owner.sealed(encode(THETA, perturbed(HONEST[0].update, make_other(), 0.8))))
    exactly = owner.gathered(owner.sealed(encode(THETA, HONEST[0].update)))
    others = [replace(miner, round=1).gathered() for miner in HONEST[1:]]

    def reasons(item):
        result = check([*others, item], round=1, history=sketches(first.remember))
        return {peer: r.reason for peer, r in result.rejected.items()}

    assert reasons(mostly) == {}
    assert reasons(exactly) == {owner.id: Reason.COPY}


def test_a_reposter_after_a_void_round_takes_its_victim_down_in_no_round():
    """The victim's new payload resembles its void one, and so the one that the thief posted again."""
    first = check([miner.gathered() for miner in HONEST])
    victim, thief = replace(HONEST[0], round=1), Miner(9, round=1)
    again = perturbed(HONEST[0].update, make_other(), 0.8)
    items = [
        victim.gathered(victim.sealed(encode(THETA, again))),
        thief.gathered(thief.sealed(encode(THETA, HONEST[0].update))),
        *(replace(miner, round=1).gathered() for miner in HONEST[1:]),
    ]
    second = check(items, round=1, history=sketches(first.remember))
    assert set(second.rejected) == {thief.id}
    later = replace(HONEST[0], round=2)
    item = later.gathered(later.sealed(encode(THETA, perturbed(again, make_update_of_round_two(), 0.8))))
    third = check([item], round=2, history=sketches({**first.remember, **second.remember}))
    assert third.rejected == {}


def make_update_of_round_two() -> Update:
    return Miner(7, seed=78).update


def test_a_peer_that_breaks_a_check_is_isolated():
    def breaks(envelope, key, data):
        if envelope.peer == BAD.id:
            raise ZeroDivisionError("hostile")
        return FUNCTIONS.unseal(envelope, key, data)

    item = BAD.gathered()
    assert reason_of(item, functions=CheckFunctions(verify, breaks)) == Reason.MALFORMED
    found = check([item], functions=CheckFunctions(verify, breaks))
    [where] = found.broken.values()
    assert where.startswith("ZeroDivisionError in breaks, test_checks.py:")
    assert check([item]).broken == {}


def test_the_order_in_which_peers_were_gathered_does_not_matter():
    items = [*(miner.gathered() for miner in HONEST), *(item for _, item, _ in list(rejected_cases())[-3:-2])]
    assert check(items) == check(items[::-1])


@settings(max_examples=60, deadline=None)
@given(
    payload=st.one_of(
        st.none(),
        st.binary(max_size=300),
        st.integers(0, SPEC.object_bytes - 1).map(lambda at: flipped(BAD.sealed().object, at)),
    ),
    reveal=st.one_of(
        st.none(),
        st.binary(max_size=200),
        st.integers(0, 175).map(lambda at: flipped(BAD.reveal(BAD.sealed().key), at)),
    ),
    commits=st.booleans(),
)
def test_no_bytes_raise_or_change_an_honest_peers_result(payload, reveal, commits):
    envelope = Digest(sha256((payload or b"")[:ENVELOPE_BYTES]).digest()) if commits else BAD.sealed().digest
    item = Gathered(BAD.peer(envelope), payload, None, reveal)
    assert isinstance(reason_of(item), Reason)


def test_details_are_our_own_votes():
    for _, item, _ in rejected_cases():
        result = check([*(miner.gathered() for miner in HONEST), item])
        assert result.rejected[BAD.id].detail.isascii()


def test_late_means_committed_between_d_and_v():
    sealed = BAD.sealed().digest
    last, reveal_deadline = CLOCK.commit_deadline(0), CLOCK.reveal_deadline(0)
    in_time, after = BAD.peer(sealed, last), BAD.peer(sealed, last + 1)
    nothing = BAD.peer(None)
    assert not is_late(in_time, after, 0, last, reveal_deadline)
    assert is_late(nothing, after, 0, last, reveal_deadline)
    assert not is_late(nothing, nothing, 0, last, reveal_deadline)
    assert not is_late(nothing, None, 0, last, reveal_deadline)


def test_a_hotkey_with_a_permit_is_judged_when_it_commits_and_the_owner_likewise():
    owner, other = PeerId(bytes([1] * 32)), PeerId(bytes([2] * 32))
    committed = Slot(5, statement=Commitment(0, Digest(bytes(32))))
    stated = Slot(5, statement=Vote(0, 1, Digest(bytes(32)), Digest(b"p" * 32)))
    for peer, validates, slot, judged in [
        (other, False, None, True),
        (other, False, committed, True),
        (other, True, committed, True),
        (other, True, stated, False),
        (other, True, None, False),
        (owner, False, None, False),
        (owner, False, committed, True),
    ]:
        assert is_judged(Peer(peer, Uid(0), 0, validates, slot=slot), owner) is judged
