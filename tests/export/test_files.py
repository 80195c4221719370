"""An export's files: names, headers, shards, config, tokenizer, against the libraries that will read them."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from murmur.data.converted import letters
from murmur.data.index import TOKENIZER, TOKENIZER_CONFIG
from murmur.data.tokenizer import BYTE_VOCABULARY, BYTES, END, RESERVED, byte_tokenizer
from murmur.export import tensors
from murmur.export.llama import names
from murmur.export.tokenizer import TokenizerFiles, run_tokenizer
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import ModelSpec
from tests.export.conftest import Made, state_of
from tests.specs import toy_spec

TOY_SHARD = 20_000


def read(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder as the safetensors library reads them."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                assert name not in found
                found[name] = file.get_tensor(name)
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_an_fp32_export_is_theta_under_other_names(tied: bool, made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out", tied=tied)
    spec = toy_spec({"model.tie_embeddings": tied})
    theirs, state = names(spec.model), state_of(spec)
    found = read(tmp_path / "out")
    assert found.keys() == set(theirs.values())
    assert ("lm_head.weight" in found) is not tied
    assert all(torch.equal(found[theirs[name]], value) for name, value in state.theta.items())


def test_a_bf16_export_is_theta_rounded_as_torch_rounds(made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out", "bfloat16")
    spec = toy_spec()
    theirs = names(spec.model)
    found = read(tmp_path / "out")
    for name, value in state_of(spec).theta.items():
        assert torch.equal(found[theirs[name]], value.to(torch.bfloat16))


def test_names_are_transformers_for_a_model_of_the_published_size() -> None:
    model = ModelSpec(vocabulary=32, layers=80, width=16, heads=2, kv_heads=1, ffn=8, context=8, tie_embeddings=False)
    theirs = names(model)
    assert len(set(theirs.values())) == len(theirs) == 80 * 9 + 3
    assert theirs["layers.79.attention.output.weight"] == "model.layers.79.self_attn.o_proj.weight"
    assert theirs["layers.10.ffn.gate.weight"] == "model.layers.10.mlp.gate_proj.weight"


def test_shards_hold_the_same_and_the_index_says_where(made: Made, tmp_path: Path) -> None:
    whole, cut = made(tmp_path / "whole"), made(tmp_path / "cut", shard_bytes=TOY_SHARD)
    assert whole.tensors == cut.tensors
    one, many = read(tmp_path / "whole"), read(tmp_path / "cut")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    index = json.loads((tmp_path / "cut" / tensors.INDEX).read_bytes())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in one.values())
    files = sorted((tmp_path / "cut").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert not (tmp_path / "whole" / tensors.INDEX).exists()
    for path in files:
        held = list(safe_open(path, framework="pt").keys())  # type: ignore[no-untyped-call]
        assert [index["weight_map"][name] for name in held] == [path.name] * len(held)
        size = sum(one[name].nbytes for name in held)
        assert size <= TOY_SHARD or len(held) == 1  # a tensor that is larger has a file of its own


def test_the_values_of_a_file_begin_where_any_reader_may_map_them(made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out", shard_bytes=TOY_SHARD)
    for path in (tmp_path / "out").glob("*.safetensors"):
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_tensors_larger_than_a_section_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from murmur.protocol import merkle

    monkeypatch.setattr(merkle, "SECTION_BYTES", 1000)
    spec = toy_spec()
    state = state_of(spec)
    plan = tensors.plan(spec.model, spec.layout, "float32")
    done: list[tuple[int, int]] = []
    digest = tensors.write(tmp_path, plan, state.theta, state.outer, lambda *so_far: done.append(so_far))
    theirs, found = names(spec.model), read(tmp_path)
    assert all(torch.equal(found[theirs[name]], value) for name, value in state.theta.items())
    assert digest == tensors.digest_of_files(tmp_path, plan, state.outer, lambda *_: None)
    assert done[-1][0] == done[-1][1] == 4 * spec.layout.num_parameters
    assert [first for first, _ in done] == sorted({first for first, _ in done})


@pytest.mark.parametrize("tied", [True, False])
def test_the_digest_of_fp32_tensors_is_the_theta_digest(tied: bool, made: Made, tmp_path: Path) -> None:
    origin = made(tmp_path / "out", tied=tied)
    assert origin.tensors == origin.theta == state_of(toy_spec({"model.tie_embeddings": tied})).digest.hex()
    assert made(tmp_path / "half", "bfloat16", tied=tied).theta == origin.theta


def test_config_says_the_model_to_old_readers_and_new(made: Made, tmp_path: Path) -> None:
    made(tmp_path / "out", "bfloat16", tied=False)
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    model = toy_spec().model
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == model.rope_theta
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert (config["architectures"], config["model_type"]) == (["LlamaForCausalLM"], "llama")
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert config["tie_word_embeddings"] is False
    assert config["rms_norm_eps"] == model.norm_epsilon
    assert json.loads((tmp_path / "out" / "generation_config.json").read_bytes())["eos_token_id"] == 256


def test_the_card_names_run_round_link_and_digests(made: Made, tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        origin = made(tmp_path / dtype, dtype)
        card = (tmp_path / dtype / "README.md").read_text()
        assert card.startswith("---\n")
        for value in (origin.run, origin.link, origin.theta, origin.tensors, "round 3", origin.run_spec.owner):
            assert value in card
        assert ("cannot prove themselves" in card) is (dtype == "bfloat16")


# --- tokenizer ---------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> TokenizerFiles:
    """The byte tokenizer as a data set has it now."""
    config = byte_tokenizer().config
    (tmp_path / TOKENIZER_CONFIG).write_bytes(config)
    return run_tokenizer(BYTES, sha256(config).hexdigest(), tmp_path)


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 日本 👍🏽", "\x00\x7f\xa0\xad \n\t\r\n  ends ", "a" * 5000])
def test_the_byte_tokenizer_gives_every_byte_its_own_id(text: str, files: TokenizerFiles) -> None:
    native = Tokenizer.from_buffer(files.data)
    ids = native.encode(text).ids
    assert ids == list(text.encode())
    assert native.decode(ids, skip_special_tokens=False) == text


def test_every_byte_has_a_letter_and_special_tokens_their_ids(files: TokenizerFiles) -> None:
    native = Tokenizer.from_buffer(files.data)
    assert [native.token_to_id(letter) for letter in letters()] == list(range(256))
    assert [native.token_to_id(token) for token in (END, *RESERVED)] == list(range(256, BYTE_VOCABULARY))
    assert native.encode(f"a{END}b").ids == [97, 256, 98]
    assert (files.end, files.config) == (256, byte_tokenizer().config)


def test_a_runs_own_files_are_taken_by_their_digests_alone(files: TokenizerFiles, tmp_path: Path) -> None:
    (tmp_path / TOKENIZER).write_bytes(files.data)
    name, config = sha256(files.data).hexdigest(), files.config_digest
    found = run_tokenizer(name, config, tmp_path)
    assert (found.data, found.config, found.end) == (files.data, files.config, 256)
    for other in (TOKENIZER, TOKENIZER_CONFIG):
        right = (tmp_path / other).read_bytes()
        (tmp_path / other).write_bytes(right + b" ")
        with pytest.raises(ConfigError, match="is not the run's"):
            run_tokenizer(name, config, tmp_path)
        (tmp_path / other).unlink()
        with pytest.raises(ConfigError, match="cannot read"):
            run_tokenizer(name, config, tmp_path)
        (tmp_path / other).write_bytes(right)
