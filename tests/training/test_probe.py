"""The prober answers what separate probes would, and leaves theta as it was."""

from murmur.data.shards import Shards
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Page
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.probe import Prober
from murmur.training.replica import Replica


def test_losses_equal_those_of_separate_probes_in_any_order(run_spec: RunSpec, data: Shards) -> None:
    replica = Replica(run_spec, genesis_theta(run_spec.model, 1))
    pages = (Page(0, 256), Page(4096, 256))
    updates = []
    for turn in range(2):
        replica.inner_round(sequences(data.train, [Page(turn * 512, 512)], 32))
        updates.append(replica.compress())
    scales = (0.5,) * len(run_spec.layout.tensors)
    digest = replica.digest()

    expected: dict[tuple[int | None, Page], list[float]] = {}
    for page in pages:
        tokens = sequences(data.train, [page], 32)
        replica.reset()
        expected[None, page] = replica.losses(tokens)
        for number, update in enumerate(updates):
            with replica.probe(update, scales, 0.8):
                expected[number, page] = replica.losses(tokens)
    assert len({tuple(found) for found in expected.values()}) == 6

    with Prober(replica, data.train, 0.8) as prober:
        for turn_or_none in (0, None, 1, 1, 0, None):
            for page in pages:
                asked = None if turn_or_none is None else updates[turn_or_none]
                assert prober.losses(asked, scales, (page,)) == expected[turn_or_none, page]
    assert replica.losses(sequences(data.train, [pages[0]], 32)) == expected[None, pages[0]]
    assert replica.digest() == digest
