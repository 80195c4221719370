"""transformers' own Llama over an export says what our model says. Needs the extra `post`."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch

from murmur.data.index import TOKENIZER, TOKENIZER_CONFIG
from murmur.data.tokenizer import BYTE_VOCABULARY, BYTES, byte_tokenizer
from murmur.export.tokenizer import run_tokenizer
from murmur.training.model import Transformer
from tests.export.conftest import Made, state_of
from tests.specs import toy_spec

transformers = pytest.importorskip("transformers", reason="the extra `post` is not installed")


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_loss_agree_and_text_is_generated(tied: bool, made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out", tied=tied, shard_bytes=20_000)
    spec = toy_spec({"model.tie_embeddings": tied})
    ours = Transformer(spec.model)
    ours.load_state_dict(state_of(spec).theta)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert theirs.dtype == torch.float32
    tokens = torch.randint(0, 257, (4, spec.model.context + 1), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, expected = theirs(tokens[:, :-1]).logits, ours(tokens[:, :-1])
        losses = ours.loss(tokens)
        theirs_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert (logits - expected).abs().max() < 1e-4
    assert abs(float(theirs_loss) - float(losses.mean())) < 1e-6
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Grüße <|end_of_text|>x"
    ids = tokenizer(text)["input_ids"]
    assert ids == [*"Grüße ".encode(), 256, ord("x")]
    assert tokenizer.decode(ids) == text
    generated = theirs.generate(**tokenizer("Request", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert generated.shape[1] > len("Request")
    greedy = int(expected_next(ours, "Request"))
    assert int(generated[0, len("Request")]) == greedy


def expected_next(ours: Transformer, text: str) -> torch.Tensor:
    with torch.no_grad():
        return ours(torch.tensor([list(text.encode())]))[0, -1].argmax()


def test_a_bf16_export_opens_in_bf16(made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out", "bfloat16")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_turns_are_the_reserved_ids(tmp_path: Path) -> None:
    config = byte_tokenizer().config
    (tmp_path / TOKENIZER_CONFIG).write_bytes(config)
    files = run_tokenizer(BYTES, sha256(config).hexdigest(), tmp_path)
    (tmp_path / TOKENIZER).write_bytes(files.data)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    turn = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], return_dict=False)
    assert turn == [257, *b"user\nHi", 258, *b"\n"]
    assert (tokenizer.eos_token_id, len(tokenizer)) == (256, BYTE_VOCABULARY)
