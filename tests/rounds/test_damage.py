"""A byte that the disk has changed: the node starts, mends itself from the others, and says what is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from murmur.node.config.run_file import folder_of
from murmur.node.state.saved import Saved
from murmur.node.sync import catchup
from murmur.protocol import keys
from murmur.protocol.types import Digest, hotkey
from murmur.rounds.validator import Validator
from murmur.training.checkpoint import blobs, manifest_path
from tests.network import FakeNetwork, saved_state

Networks = Callable[..., FakeNetwork]


def file_of(files: Path, saved: Saved, part: str) -> Path:
    match part:
        case "theta":
            return blobs(files.parent / "snapshot", saved.consensus.snapshot.state)[0][1]
        case "manifest":
            return blobs(files.parent / "snapshot", saved.consensus.snapshot.state)[-1][1]
        case "log":
            step = saved.consensus.log[0]
            return files.parent / "log" / step.payloads[0].envelope.hex()
        case "own":
            own = files.parent / "own"
            return blobs(own, Digest(bytes.fromhex((own / "latest").read_text())))[0][1]
        case "sealed":
            assert saved.sealed is not None
            return files / saved.sealed.object.hex()
        case "book":
            assert saved.book is not None
            return files / saved.book.hex()
    return files.parent / "state.db"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("miner-1", "theta"),
        ("miner-1", "manifest"),
        ("miner-1", "own"),
        ("miner-1", "sealed"),
        ("miner-1", "log"),
        ("miner-1", "state.db"),
        ("validator", "theta"),
        ("validator", "log"),
        ("validator", "book"),
        ("validator", "state.db"),
    ],
)
def test_a_node_whose_disk_changed_a_byte_mends_itself(networks: Networks, name: str, part: str) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(3)
    # What was sealed for a round that was applied is one file with the log's.
    network.run_to_block(network.clock.commit_deadline(3) - 1)
    network.kill(name)
    saved, store = saved_state(network, name)
    store.close()
    path = file_of(store.files, saved, part)
    data = bytearray(path.read_bytes())
    at = data.index(saved.link.hex().encode()) if part == "state.db" else len(data) // 2
    data[at] ^= 1
    path.write_bytes(data)
    network.start(name)
    network.run_until(6)
    network.assert_agreement()
    last = network["miner-2"].events("applied")[-1]["round"]
    assert not {last - 1, last} & set(network["miner-2"].voids())
    assert hotkey(network["miner-1"].peer) in network["miner-2"].contributing(last)
    assert list((store.folder / "damaged").iterdir())
    told = [event["lost"] for event in network[name].events("damaged")]
    assert told == ([] if part == "state.db" else [["theta" if part == "manifest" else part]])
    if (name, part) == ("validator", "theta"):
        program = network[name].program
        assert isinstance(program, Validator)
        assert program.scores.book.peers[network["miner-1"].peer].evaluations > 3  # nothing but theta was lost


@pytest.mark.parametrize("behind", [False, True])
def test_what_was_sealed_and_damaged_before_a_void_round_gives_it_back_is_lost_and_nothing_else(
    networks: Networks, behind: bool
) -> None:
    """While the node runs: a void round, and catch-up past one, open what was sealed, with no start before it."""
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.kill("validator")

    held = network["miner-1"].node.state
    network.run_blocks(lambda: network["miner-1"].events("revealed")[-1]["round"] == held.saved.round)
    found = held.saved.sealed
    assert found is not None
    assert found.round == held.saved.round
    path = held.store.path(found.object)
    path.write_bytes(b"?" + path.read_bytes()[1:])
    if behind:
        assert not catchup._restore_to_error_feedback(held, found.round + 1, ())
        assert held.saved.sealed is None
    else:
        network.run_until(found.round + 1, "miner-1")
        assert network["miner-1"].voids()
    assert [event["lost"] for event in network["miner-1"].events("damaged")] == [["sealed"]]
    assert list((held.store.folder / "damaged").iterdir())
    if not behind:
        network.start("validator")
        network.run_until(found.round + 4)
        network.assert_agreement()


@pytest.mark.parametrize("part", ["theta", "manifest"])
def test_what_was_fetched_and_damaged_before_anything_was_saved_is_fetched_again(networks: Networks, part: str) -> None:
    """A node that died between the two must not fail at every start for ever."""
    network = networks(miners=2)
    state = Digest(bytes.fromhex(network.run.first.genesis_checkpoint))
    files = folder_of(network["miner-2"].home, network.run.id) / "snapshot"
    files.mkdir(parents=True)
    manifest = network.store.buckets["owner"][keys.blob(state)].data
    manifest_path(files, state).write_bytes(manifest if part == "theta" else manifest[:-1])
    if part == "theta":
        (_, tensors), _ = blobs(files, state)
        tensors.write_bytes(b"another")
    network.start()
    network.run_until(2)
    assert network["miner-2"].events("applied")
    network.assert_agreement()
    assert list((files.parent / "damaged").iterdir())
