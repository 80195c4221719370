from hashlib import sha256

import numpy as np
import pytest
import torch

from murmur.protocol import merkle
from murmur.protocol.assignment import Draw
from murmur.protocol.layout import Layout
from murmur.protocol.types import Digest, PeerId
from sparseloco.digest import sync_proof, sync_values, theta_digest
from sparseloco.outer import OuterState
from tests.sparseloco.samples import RAGGED, arrays, tensors

LAYOUT = Layout.of(RAGGED, 64)
STATE = OuterState(3, tuple(0.1 * i for i in range(len(RAGGED))), 0.7)
HASH = Digest(sha256(b"block").digest())
PEER = PeerId(b"p" * 32)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_digest_is_the_merkle_root_over_sections_and_state(monkeypatch, threads):
    monkeypatch.setattr(merkle, "SECTION_BYTES", 4096)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    theta = arrays("normal", 0)
    leaves = []
    for name in sorted(RAGGED):
        data = theta[name].astype("<f4").tobytes()
        leaves += [sha256(b"\x00" + data[at : at + 4096]).digest() for at in range(0, len(data), 4096)]
    assert len(leaves) > len(RAGGED)
    assert theta_digest(tensors(theta), LAYOUT, STATE) == merkle.root([*leaves, merkle.leaf(STATE.encode())])


@pytest.mark.parametrize("name", [name for name in RAGGED if name != "empty"])
def test_one_bit_of_any_tensor_changes_the_digest(name):
    theta = tensors(arrays("zero", 0))
    before = theta_digest(theta, LAYOUT, STATE)
    theta[name].view(-1)[-1] = -0.0
    assert theta_digest(theta, LAYOUT, STATE) != before


def test_the_rest_of_the_consensus_state_changes_the_digest():
    theta = tensors(arrays("normal", 0))
    states = [STATE, OuterState(4, STATE.averages, 0.7), OuterState(3, STATE.averages, 0.8), OuterState.initial(LAYOUT)]
    assert len({theta_digest(theta, LAYOUT, state) for state in states}) == 4


def test_the_order_of_the_dict_and_of_memory_does_not_change_the_digest():
    theta = tensors(arrays("normal", 0))
    before = theta_digest(theta, LAYOUT, STATE)
    shuffled = dict(reversed(theta.items()))
    shuffled["corner"] = shuffled["corner"].t().contiguous().t()
    assert theta_digest(shuffled, LAYOUT, STATE) == before


def test_the_sync_proof_reads_the_drawn_positions_of_all_tensors_end_to_end():
    theta = arrays("normal", 0)
    flat = np.concatenate([theta[name].ravel() for name in sorted(RAGGED)]).astype("<f4")
    draw = Draw("sync", HASH)
    drawn = [draw.below(flat.size) for _ in range(4096)]
    expected = sha256(flat[drawn].tobytes() + PEER).digest()
    assert sync_proof(sync_values(tensors(theta), LAYOUT, HASH), PEER) == expected


def test_the_sync_proof_depends_on_block_peer_and_parameters():
    theta = tensors(arrays("normal", 0))
    stale = {name: value + 1e-3 for name, value in theta.items()}
    proofs = {
        sync_proof(sync_values(theta, LAYOUT, HASH), PEER),
        sync_proof(sync_values(theta, LAYOUT, Digest(bytes(32))), PEER),
        sync_proof(sync_values(theta, LAYOUT, HASH), PeerId(b"q" * 32)),
        sync_proof(sync_values(stale, LAYOUT, HASH), PEER),
    }
    assert len(proofs) == 4


def test_a_bf16_theta_has_no_digest():
    theta = {"t": torch.zeros(3, dtype=torch.bfloat16)}
    with pytest.raises(ValueError, match="bfloat16"):
        theta_digest(theta, Layout.of({"t": (3,)}, 64), OuterState(0, (0.0,), 0.0))
