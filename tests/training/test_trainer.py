"""What one rank does by itself: its share of the tensors, in slabs, and memory that others can map."""

import torch

from murmur.protocol.layout import Layout
from murmur.protocol.spec import RunSpec
from murmur.training.host import Area, model_bytes, model_tensors
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks
from murmur.training.replica import Replica
from murmur.training.trainer import _divides, _share, _slabs
from tests.specs import toy_spec


def test_slabs_give_the_same_payload_as_all_tensors_at_once() -> None:
    spec = toy_spec()
    replicas = [Replica(spec, genesis_theta(spec.model, 1)) for _ in range(2)]
    work = torch.randint(0, 257, (16, 33), generator=torch.Generator().manual_seed(2))
    for replica in replicas:
        replica.inner_round(work)
    trainer = replicas[1]._trainer
    trainer._slabs = _slabs(spec.layout, trainer._mine, 20_000)
    assert len(trainer._slabs) > 3
    whole, in_slabs = (replica.compress() for replica in replicas)
    assert whole.records == in_slabs.records
    errors = [replica.own_state().tensors for replica in replicas]
    assert all(torch.equal(errors[0][name], errors[1][name]) for name in errors[0])


def test_every_row_is_compressed_by_exactly_one_rank(run_spec: RunSpec) -> None:
    layout = Layout.of({**run_spec.model.shapes(), "wide": (512, 3), "line": (4096,), "deep": (256, 2, 5)}, 64)
    for size in (1, 2, 3, 4):
        ranks = [Ranks(index, size) for index in range(size)]
        for tensor in layout:
            rows = [row for rank in ranks for row in range(tensor.shape[0])[_share(tensor, rank)]]
            assert rows == list(range(tensor.shape[0]))
        cut = {tensor.name for tensor in layout if _divides(tensor, size)}
        assert ("wide" in cut) == (size in (1, 2, 4))
        assert ("line" in cut) == (size == 1)
        slabs = [
            slab for rank in ranks for slab in _slabs(layout, {each.name: _share(each, rank) for each in layout}, 1e9)
        ]
        assert sum(slab.records_bytes for slab in slabs) == layout.records_bytes


def test_a_shared_area_is_one_memory_under_two_mappings(run_spec: RunSpec) -> None:
    layout = run_spec.layout
    ours = Area(model_bytes(layout), shared=True)
    theirs = Area(ours.num_bytes, ours.path)
    ours.close_file()
    written = model_tensors(ours, layout)
    assert all(not tensor.any() for tensor in written.values())
    for number, tensor in enumerate(written.values()):
        tensor.fill_(number)
    for number, tensor in enumerate(model_tensors(theirs, layout).values()):
        assert bool((tensor == number).all())
        assert tensor.data_ptr() % 64 == 0
