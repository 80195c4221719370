"""Sizes of a run against counts that others published, and against torch's own."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from murmur.data.index import SHARD_TOKENS
from murmur.plan import presets
from murmur.protocol.spec import ModelSpec
from murmur.training.model import Transformer
from murmur.training.sizes import Sizes, flops_per_token, layer_parameters, untied_parameters

COUNTS = {
    "tiny": (115_520, 132_416),
    "parts": (37_958_400, 38_161_152),
    "150m": (182_215_680, 214_983_680),
    "1b": (1_235_814_400, 1_498_482_688),
    "8b": (8_030_261_248, 8_030_261_248),
    "intellect-10b": (10_211_381_248, 10_211_381_248),
    "covenant-72b": (70_599_843_840, 72_747_327_488),
    "covenant-72b-110": (70_599_843_840, 72_747_327_488),
}


def test_every_preset_has_its_count() -> None:
    assert set(COUNTS) == set(presets.names())


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_exact_and_those_of_the_model_that_is_trained(name: str) -> None:
    spec = presets.read(name).first
    with torch.device("meta"):
        model = Transformer(spec.model)
    assert {key: tuple(value.shape) for key, value in model.named_parameters()} == spec.model.shapes()
    tied, untied = COUNTS[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.layout.num_parameters == tied
    assert untied_parameters(spec.model) == untied
    assert layer_parameters(spec.model) == sum(parameter.numel() for parameter in model.layers[-1].parameters())


def test_covenants_tied_count_with_the_reports_vocabulary_would_need_another_ffn() -> None:
    """The report says tied and 262,208 rows; the published count is then not a Llama-3-70B feed-forward's."""
    model = presets.read("covenant-72b").first.model
    for ffn, expected in ((28_672, False), (29_764, True)):
        said = model.model_copy(update={"vocabulary": 262_208, "ffn": ffn})
        count = sum(torch.Size(shape).numel() for shape in said.shapes().values())
        assert (abs(count - COUNTS["covenant-72b"][1]) < 10**7) is expected


def test_a_full_chunk_is_82_bytes_and_covenant_has_nothing_else() -> None:
    spec = presets.read("covenant-72b").first
    assert Sizes(spec).payload == 70_599_843_840 // 4096 * 82 + 32 + 204
    assert spec.layout.num_parameters % 4096 == 0


@pytest.mark.parametrize("tied", [True, False])
def test_flops_of_matrix_products_are_what_torch_counts(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModelSpec(vocabulary=300, layers=3, width=48, heads=4, kv_heads=2, ffn=80, context=32, tie_embeddings=tied)
    model = Transformer(spec)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    with FlopCounterMode(display=False) as counter:
        model.loss(torch.zeros(2, 33, dtype=torch.int64)).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    products = sum(flops for op, flops in counted.items() if "attention" not in str(op))
    attention = 6 * spec.layers * spec.width * (spec.context + 1)
    assert products == 2 * 32 * (flops_per_token(spec) - attention)


def test_a_shard_is_as_large_as_it_is_built() -> None:
    assert [Sizes(presets.read(name).first).shard // SHARD_TOKENS for name in ("tiny", "8b")] == [2, 4]
