"""The method in one function, from top to bottom: SparseLoCo, Algorithm 1 (arXiv 2508.15706), as this run fixes it.

    Delta = theta - theta_r;  acc = beta * e + Delta;  Delta_hat = Q(TopK(acc));  e <- acc - Delta_hat

This is the executable specification: every other backend gives the same bytes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from murmur.protocol.layout import Layout
from sparseloco import quantize, records
from sparseloco.feedback import accumulate
from sparseloco.floats import destination, require_denormals, tensor_of
from sparseloco.topk import blocks, slabs, top_k, write_blocks
from sparseloco.update import Update


def compress(
    theta: Mapping[str, Tensor],
    theta_r: Mapping[str, Tensor],
    error: Mapping[str, Tensor] | None,
    layout: Layout,
    beta: float,
    out: Mapping[str, Tensor] | None = None,
) -> tuple[Update, dict[str, Tensor]]:
    """Return a miner's update after its inner steps, and its new error feedback.

    theta fp32; theta_r fp32 or bf16 (widened exactly); error fp32, None for the first round's zeros. No input is
    changed. The new error's tensors are new, or those of `out`: contiguous fp32, apart from all inputs. Raises
    NonFinite if beta * e + Delta has a NaN or an infinity (nothing must be sent; `out` is then undefined), ValueError
    if a tensor is missing or has the wrong shape or dtype.
    """
    require_denormals()
    packed = np.empty(layout.records_bytes, dtype=np.uint8)
    new_error: dict[str, Tensor] = {}
    for tensor in layout:
        start = tensor_of(theta, tensor, torch.float32)
        end = tensor_of(theta_r, tensor, torch.float32, torch.bfloat16)
        delta = start - end.to(torch.float32)
        carried = None if error is None else tensor_of(error, tensor, torch.float32)
        acc = accumulate(delta, carried, beta)
        for region in slabs(tensor):
            chunks = blocks(acc, tensor, region)
            indices = top_k(chunks, region.k)
            values = chunks.gather(1, indices)
            codes = quantize.fit(values)
            view = records.window(packed, tensor, region)
            view[:] = records.encode(records.Chunks(indices, codes), region).reshape(view.shape)
            chunks.scatter_(1, indices, values - codes.values())
            write_blocks(acc, tensor, region, chunks)
        new_error[tensor.name] = acc if out is None else destination(out, tensor).copy_(acc)
    return Update(layout, packed.tobytes()), new_error
