"""The library's functions as torch operators, and plans that no layout makes."""

import pytest
import torch

from murmur.protocol.layout import Layout
from sparseloco import kernels, operators
from tests.sparseloco.samples import RAGGED, tensors
from tests.sparseloco.test_reference import BETA, inputs

try:
    ISAS = kernels.supported()
except kernels.Unavailable as fault:
    pytest.skip(str(fault), allow_module_level=True)


@pytest.mark.parametrize("isa", ISAS)
def test_the_operators_pass_torchs_own_check(isa):
    layout = Layout.of(RAGGED, 64)
    regions, sizes = kernels.tables(layout)
    theta, theta_r, error = (list(tensors(values).values()) for values in inputs("normal"))
    order = [list(RAGGED).index(tensor.name) for tensor in layout]
    theta, theta_r, error = ([group[place] for place in order] for group in (theta, theta_r, error))
    how = (2, kernels.ISAS.index(isa))
    records = torch.zeros(layout.records_bytes, dtype=torch.uint8)
    new = [torch.empty_like(value) for value in theta]
    library = torch.ops.murmuration
    torch.library.opcheck(library.compress.default, (regions, sizes, theta, theta_r, error, BETA, new, records, *how))
    library.compress(regions, sizes, theta, theta_r, error, BETA, new, records, *how)
    torch.library.opcheck(library.validate.default, (regions, sizes, [records, torch.zeros_like(records)], *how))
    weights = torch.full((1, len(theta)), 0.5)
    torch.library.opcheck(library.aggregate.default, (regions, sizes, [records], weights, 0, theta, new, *how))


@pytest.mark.parametrize("column", range(kernels.REGION_FIELDS))
@pytest.mark.parametrize("value", [-1, 2**40, 2**63 - 1])
def test_a_plan_that_reaches_outside_its_tensors_or_records_is_refused_before_memory_is_touched(column, value):
    layout = Layout.of({"t": (130, 70)}, 64)
    regions, sizes = kernels.tables(layout)
    broken = regions.clone()
    broken[-1, column] = value
    if column == 10:  # record_step counts between rows of blocks: give the region two of them
        broken[-1, 4] = 2
    records = torch.zeros(layout.records_bytes, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="refused its plan"):
        operators.validate(broken, sizes, [records], 1, 0)
