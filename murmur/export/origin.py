"""The origin of an export: murmur.json, from which all other files follow except the values of the tensors; and the
card, README.md, with the same facts for people."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from murmur.data.index import TOKENIZER, TOKENIZER_CONFIG
from murmur.data.tokenizer import BYTES
from murmur.export.llama import Dtype, config, generation_config
from murmur.export.tensors import INDEX, Plan, as_json, plan
from murmur.export.tokenizer import TokenizerFiles
from murmur.protocol.cluster import ClusterSpec, build_cluster
from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import Count, HexDigest, Table, fault_lines
from murmur.protocol.spec import RunSpec, build
from murmur.protocol.types import DIGEST_BYTES, Digest
from murmur.training.checkpoint import parse_outer
from sparseloco.outer import OuterState

ORIGIN, CARD = "murmur.json", "README.md"
CONFIG, GENERATION = "config.json", "generation_config.json"
MAX_ORIGIN_BYTES = 16 << 20


class Outer(Table):
    """The outer state: part of what the theta digest covers. Numbers in the form of `float.hex`."""

    rounds: Count
    averages: list[Annotated[str, Field(max_length=32)]]
    whole: Annotated[str, Field(max_length=32)]


class Origin(Table):
    """The content of murmur.json.

    `spec`: the run's first spec, or the cluster's, whose digest is the run id. The state is that at the start of
    `round`. `link`: to the last agreed selection, or record, before it. `theta`: its digest, as validators name it on
    chain, or the next record does. `tensors`: the same digest over the tensors as exported (for an fp32 export,
    theta's, unless the outer step has a momentum, which is not exported). `tokenizer` and `tokenizer_config`: as in the
    index of the run's data set. `end`: the id that ends a document.
    """

    version: Literal[1] = 1
    run: HexDigest
    round: Count
    link: HexDigest
    theta: HexDigest
    dtype: Dtype
    tensors: HexDigest
    shard_bytes: Annotated[int, Field(gt=0, le=1 << 50)]
    tokenizer: Literal["bytes"] | HexDigest
    tokenizer_config: HexDigest
    end: Count
    outer: Outer
    spec: dict[str, Any]

    def to_bytes(self) -> bytes:
        return as_json(self.model_dump(mode="json"))

    @property
    def run_spec(self) -> RunSpec | ClusterSpec:
        if "cluster" in self.spec:
            return build_cluster(self.spec, f"the run spec in {ORIGIN}")
        return build(self.spec, f"the run spec in {ORIGIN}")

    @property
    def outer_state(self) -> OuterState:
        return parse_outer(self.outer.model_dump(), self.run_spec.layout)

    def plan(self) -> Plan:
        spec = self.run_spec
        return plan(spec.model, spec.layout, self.dtype, self.shard_bytes)


def parse_origin(data: bytes) -> Origin:
    """Parse murmur.json of any origin. Raises ConfigError when it is invalid, or when its run id is not its spec's."""
    if len(data) > MAX_ORIGIN_BYTES:
        raise ConfigError(f"{ORIGIN} has {len(data)} bytes, more than any export's")
    try:
        origin = Origin.model_validate_json(data)
    except ValidationError as fault:
        raise ConfigError(f"{ORIGIN} is not an export's:\n{fault_lines(fault)}") from None
    spec = origin.run_spec
    if spec.digest.hex() != origin.run:
        raise ConfigError(f"{ORIGIN} is not an export's: its run id is not the digest of its spec")
    if origin.end >= spec.model.vocabulary:
        raise ConfigError(f"{ORIGIN} is not an export's: token {origin.end} is not in the vocabulary")
    return origin


def small_files(origin: Origin, tokenizer: TokenizerFiles) -> dict[str, bytes]:
    """Return every file of an export except its tensors and its card, by name: exactly these bytes."""
    model, index = origin.run_spec.model, origin.plan().index
    files = {
        ORIGIN: origin.to_bytes(),
        CONFIG: as_json(config(model, origin.dtype, tokenizer.end)),
        GENERATION: as_json(generation_config(tokenizer.end)),
        TOKENIZER: tokenizer.data,
        TOKENIZER_CONFIG: tokenizer.config,
    }
    return files if index is None else files | {INDEX: index}


def card(origin: Origin, named: bool) -> bytes:
    """Return README.md. named: whether validators name this state on chain by now."""
    spec = origin.run_spec
    model = spec.model
    kind = "bytes" if origin.tokenizer == BYTES else f"the tokenizer.json with sha256 {origin.tokenizer}"
    clustered = isinstance(spec, ClusterSpec)
    proof = _proof(origin, named)
    by = "by the members of a cluster" if clustered else "by strangers"
    whose = (
        "| members | those who hold the cluster's token |"
        if isinstance(spec, ClusterSpec)
        else f"| owner | `{spec.owner}` on subnet {spec.netuid} of the chain with genesis `{spec.chain}` |"
    )
    verify = "DIR TOKEN_FILE" if clustered else "DIR        # with --network, for another chain than finney"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- murmuration
- llama
---

# {spec.name}, round {origin.round}

A base model, pre-trained {by} with Murmuration: theta at the start of round {origin.round}, which
{origin.outer.rounds} rounds of agreed updates have made. Llama architecture, {spec.layout.num_parameters:,} parameters,
{model.layers} layers of width {model.width}, context {model.context}, trained on {kind}. No judgement of its quality or
safety was made by exporting it.

| | |
|---|---|
| run | `{spec.name}`, id `{origin.run}` |
{whose}
| round | {origin.round} |
| link | `{origin.link}` |
| theta digest | `{origin.theta}` |
| tensors | {origin.dtype}, digest `{origin.tensors}` |

{proof}

    murmur export --verify {verify}
""".encode()


def _proof(origin: Origin, named: bool) -> str:
    """Return how this export is proved, for the card."""
    if isinstance(origin.run_spec, ClusterSpec):
        return (
            "The members of a cluster trust each other, and their bucket is not public: a holder of the token proves "
            "this folder while the bucket keeps the checkpoint, or anybody by an fp32 export of the same state."
        )
    if origin.dtype == "float32":
        proof = (
            "The tensors are theta itself, in fp32. Their digest, with the outer state in murmur.json, is the theta "
            "digest, so a look at the chain proves them: nothing else has to be fetched."
        )
    else:
        proof = (
            "The tensors are theta rounded to bf16 (to nearest, ties to even). What is lost by that is not here, so "
            "these files cannot prove themselves: `murmur export --verify` gets the fp32 theta from the run's public "
            "objects, while they are kept, or from an fp32 export of the same state, checks its digest, rounds it "
            "again and compares."
        )
    if not named:
        proof += (
            " When this was exported no validator had named this state on chain yet: it follows from the last agreed "
            "selection and the payloads that it names."
        )
    return proof


def digest(text: str) -> Digest:
    """Parse a digest from hex."""
    found = bytes.fromhex(text)
    if len(found) != DIGEST_BYTES:
        raise ValueError("no digest")
    return Digest(found)
