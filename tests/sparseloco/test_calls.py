"""Plans that no layout makes."""

import pytest
import torch

from murmur.protocol.layout import Layout
from sparseloco import calls, kernels

try:
    kernels.supported()
except kernels.Unavailable as fault:
    pytest.skip(str(fault), allow_module_level=True)


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
        calls.validate(broken, sizes, [records], 1, 0)
