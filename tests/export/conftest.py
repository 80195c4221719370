from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from murmur.data.index import TOKENIZER_CONFIG
from murmur.data.tokenizer import BYTES, byte_tokenizer
from murmur.export.folder import write
from murmur.export.llama import Dtype
from murmur.export.origin import Origin
from murmur.export.states import Named, Rebuilt
from murmur.export.tokenizer import run_tokenizer
from murmur.protocol.messages import first_link
from murmur.protocol.spec import RunSpec
from murmur.training.model import genesis_theta
from sparseloco.digest import theta_digest
from sparseloco.outer import OuterState
from tests.network import data_folder
from tests.specs import toy_spec

__all__ = ["data_folder"]

Made = Callable[..., Origin]


def quiet(*_: object) -> None:
    """Nobody waits."""


def state_of(spec: RunSpec, seed: int = 1) -> Rebuilt:
    """A state as training may leave it: theta of every magnitude, gains that are not 1."""
    generator = torch.Generator().manual_seed(seed)
    theta = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in genesis_theta(spec.model, seed).items()
    }
    outer = OuterState(7, tuple(0.5 + index for index in range(len(spec.layout.tensors))), 3.25)
    return Rebuilt(theta, outer, theta_digest(theta, spec.layout, outer), first_link(spec.digest))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """made(folder, dtype, tied=.., shard_bytes=.., config=..): an export of a toy state, without a network. config: of
    its tokenizer, whose ids are bytes."""

    def make(
        folder: Path,
        dtype: Dtype = "float32",
        *,
        tied: bool = True,
        shard_bytes: int = 5_000_000_000,
        seed: int = 1,
        config: bytes = byte_tokenizer().config,
    ) -> Origin:
        spec = toy_spec({"model.tie_embeddings": tied})
        folder.mkdir()
        state = state_of(spec, seed)
        (folder / TOKENIZER_CONFIG).write_bytes(config)
        tokenizer = run_tokenizer(BYTES, sha256(config).hexdigest(), folder)
        return write(
            folder,
            spec.digest,
            spec,
            Named(3, first_link(spec.digest), None),
            state,
            tokenizer,
            dtype,
            shard_bytes,
            quiet,
        )

    return make
