"""The loss of held-out chats is of their tokens, each alike, not of their rows."""

from pathlib import Path

import pytest
import torch

from murmur.export.recipes import Recipe
from tests.export.test_sft import EXTRA, SHORT, base

__all__ = ["base"]

pytestmark = pytest.mark.filterwarnings("ignore")


def test_rows_of_many_tokens_count_for_more_than_rows_of_few(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason=EXTRA)
    transformers = pytest.importorskip("transformers", reason=EXTRA)
    import tomllib

    from datasets import Dataset
    from torch.nn.functional import cross_entropy

    from murmur.export.trainer import trainer

    lengths, labelled = (40, 12, 30), (30, 1, 3)
    tokens = [[(7 * at * at + number) % 90 + 1 for at in range(length)] for number, length in enumerate(lengths)]
    rows = [
        {"input_ids": row, "labels": [-100] * (len(row) - count) + row[-count:], "attention_mask": [1] * len(row)}
        for row, count in zip(tokens, labelled, strict=True)
    ]
    recipe = Recipe.model_validate(tomllib.loads(SHORT))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    data = Dataset.from_list(rows)
    made = trainer(base, tmp_path / "out", recipe, recipe.stages[0], data, 3, tokenizer, sequences=1, cpu=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    sums = []
    for row, count in zip(tokens, labelled, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0, -count - 1 : -1]
        sums.append(float(cross_entropy(logits, torch.tensor(row[-count:]), reduction="sum")))
    by_rows = sum(one / count for one, count in zip(sums, labelled, strict=True)) / len(rows)
    by_tokens = sum(sums) / sum(labelled)
    assert abs(by_rows - by_tokens) > 0.01
    assert made.loss_of(data) == pytest.approx(by_tokens, rel=1e-5)
