"""`murmur export --verify`: whether this folder is the run's theta, and nothing else.

Every byte of an export except the values of its tensors follows from murmur.json, so the other files are compared whole
and never parsed. The values are hashed. For an fp32 export that gives the theta digest, which is compared with the
chain's. A bf16 export has lost bits: the fp32 theta is fetched from the run, or from an fp32 export, rounded, and
compared.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from murmur.data.index import Index
from murmur.export import tensors
from murmur.export.folder import rebuilt, told
from murmur.export.origin import CARD, MAX_ORIGIN_BYTES, ORIGIN, Origin, parse_origin, small_files
from murmur.export.states import AnyStates
from murmur.export.tokenizer import TokenizerFiles, run_tokenizer
from murmur.export.tuned import TUNED, is_tuned
from murmur.protocol.errors import CheckpointCorrupt, ConfigError
from murmur.protocol.types import Digest
from sparseloco.outer import OuterState

_PEOPLES = (CARD, "LICENSE", "NOTICE")
"""Files of a folder that no program reads as part of the model: their content is free."""
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


class Differs(Exception):
    """The folder does not match its own description, or the run. The message names the difference."""


@dataclass(frozen=True, slots=True)
class Export:
    """A folder whose files are those of one export, compared and hashed."""

    folder: Path
    origin: Origin
    plan: tensors.Plan

    @property
    def theta(self) -> Digest:
        return Digest(bytes.fromhex(self.origin.theta))

    @property
    def link(self) -> Digest:
        return Digest(bytes.fromhex(self.origin.link))

    @property
    def digest(self) -> Digest:
        """Digest of the tensors."""
        return Digest(bytes.fromhex(self.origin.tensors))


def read_origin(folder: Path) -> Origin:
    """Return an export's own description. Raises ConfigError for a folder that is no export."""
    if (folder / ORIGIN).is_file():
        with (folder / ORIGIN).open("rb") as file:
            return parse_origin(file.read(MAX_ORIGIN_BYTES + 1))
    if is_tuned(folder):
        raise ConfigError(
            f"{folder} is a fine-tuned model (murmur sft), not a run's theta, so nothing on chain proves it. "
            f"{TUNED} names its export, which can be proved"
        )
    raise ConfigError(f"{folder} is not an export: it has no {ORIGIN} (`murmur export` makes one)")


def read_export(folder: Path, tell: Callable[[str], None]) -> Export:
    """Return the export in `folder` after checking all of its files against its murmur.json. Raises Differs,
    ConfigError."""
    export = read_files(folder)
    origin = export.origin
    found = tensors.digest_of_files(folder, export.plan, _outer(origin), told(tell, "hashed"))
    if found.hex() != origin.tensors:
        raise Differs(f"the tensors hash to {found.hex()}, {ORIGIN} says {origin.tensors}: a file is damaged")
    if origin.dtype == "float32" and origin.tensors != origin.theta and not origin.run_spec.momentum:
        raise Differs(
            f"the tensors are fp32 and hash to {origin.tensors}, which is not the theta digest {origin.theta}"
        )
    return export


def read_files(folder: Path) -> Export:
    """Check as `read_export`, except the values of the tensors: quick for a model of any size, and enough for libraries
    to open it. Raises Differs, ConfigError."""
    origin = read_origin(folder)
    present = _present(folder)
    spec = origin.run_spec
    # Check before anything is made from a stranger's spec: its tensors could be of any size.
    if sum(present.values()) < (size := spec.layout.num_parameters * _ITEM_BYTES[origin.dtype]):
        raise Differs(f"its files have {sum(present.values())} bytes, the tensors of its model {size}")
    plan = origin.plan()
    expected = small_files(origin, _tokenizer(folder, origin))
    known = {*expected, *(file.name for file in plan.files), *_PEOPLES}
    if odd := sorted(present.keys() - known):
        raise Differs(f"it has files that are not an export's: {', '.join(ascii(name)[1:-1] for name in odd[:5])}")
    for name, data in expected.items():
        if _start(folder, name, len(data) + 1) != data:
            raise Differs(f"{name} is not as {ORIGIN} says")
    for file in plan.files:
        if _start(folder, file.name, len(file.header)) != file.header or present[file.name] != file.size:
            raise Differs(f"{file.name} is not a file of these tensors")
    _outer(origin)
    return Export(folder, origin, plan)


def _present(folder: Path) -> dict[str, int]:
    """Return the bytes of each file by name, without dot files. Raises Differs for non-files: reading a pipe would
    block."""
    found = {}
    for path in folder.iterdir():
        if not path.name.startswith("."):
            if not path.is_file():
                raise Differs(f"{ascii(path.name)[1:-1]} is not a file")
            found[path.name] = path.stat().st_size
    return found


def _outer(origin: Origin) -> OuterState:
    try:
        return origin.outer_state
    except CheckpointCorrupt:
        raise Differs(f"the outer state in {ORIGIN} is not one of this model") from None


def _tokenizer(folder: Path, origin: Origin) -> TokenizerFiles:
    try:
        found = run_tokenizer(origin.tokenizer, origin.tokenizer_config, folder)
    except ConfigError as fault:
        raise Differs(str(fault)) from None
    if found.end != origin.end:
        raise Differs(f"{ORIGIN} says that token {origin.end} ends a document, it is {found.end}")
    return found


def _start(folder: Path, name: str, size: int) -> bytes:
    with suppress(FileNotFoundError), (folder / name).open("rb") as file:
        return file.read(size)
    raise Differs(f"{name} is missing")


# --- proof -------------------------------------------------------------------------------------------------------


def prove_by_digest(export: Export, theta: Digest) -> Iterator[str]:
    """Verify by a theta digest that the caller trusts; yield the results line by line. Raises Differs, and ConfigError
    for a bf16 export."""
    if export.theta != theta:
        raise Differs(f"it is of the state {export.theta.hex()}, which is not the one given, {theta.hex()}")
    if export.origin.dtype != "float32":
        raise ConfigError(
            "a bf16 export cannot be proved by a digest alone: theta's low bits are not in it. Give the run, or an "
            "fp32 export of the same state, which proves itself by the digest"
        )
    yield f"the fp32 tensors hash to the theta digest given, {theta.hex()}"
    yield (
        "unchecked: whether that is a state of this run, and so config.json and the tokenizer: a theta digest is of "
        "values alone. Give the run to see them proved"
    )


def prove_by_export(export: Export, other: Export, tell: Callable[[str], None]) -> Iterator[str]:
    """Verify by an fp32 export of the same state. Raises Differs, ConfigError."""
    if other.origin.dtype != "float32":
        raise ConfigError(f"{other.folder} is a bf16 export: only an fp32 export holds theta")
    if (export.origin.run, export.theta, export.link) != (other.origin.run, other.theta, other.link):
        raise Differs(f"it is of another state than {other.folder}")
    if _tokens(export.origin) != _tokens(other.origin):
        raise Differs(f"its tokenizer, or how that is configured, is another than in {other.folder}")
    theta = tensors.mapped(other.folder, other.plan, other.origin.run_spec.model.shapes())
    _same_values(export, tensors.digest_of(theta, export.plan, other.origin.outer_state, told(tell, "rounded")))
    yield f"the tensors are those of {other.folder}, as {export.origin.dtype}"
    proof = f"murmur export --verify {quote(str(other.folder))}"
    yield f"that the theta of {other.folder} is the run's needs its own proof: {proof}"


def prove_by_run(export: Export, states: AnyStates, index: Index | None, tell: Callable[[str], None]) -> Iterator[str]:
    """Verify by the run: by the digest that its chain names, and where that is not enough, by theta rebuilt from its
    public objects.

    index: of the run's data set, None where it cannot be fetched. Raises Differs, ConfigError, StorageError,
    ChainError.
    """
    origin = export.origin
    if origin.run != states.id.hex():
        raise Differs(f"it is of run {origin.run}, and this is run {states.id.hex()}")
    if index is not None and (index.tokenizer, index.tokenizer_config) != _tokens(origin):
        raise Differs("its tokenizer, or how that is configured, is not what the run's data set names")
    state_ref = states.at(origin.round).state_ref
    if state_ref not in (None, (export.theta, export.link)):
        raise Differs(f"it is of the state {origin.theta}, another one is named for the start of round {origin.round}")
    if state_ref is not None and origin.dtype == "float32" and not states.spec.momentum:
        yield f"the fp32 tensors hash to the theta digest {origin.theta}: {states.named_by}"
    else:
        if state_ref is not None:
            tell("the tensors alone do not give the digest: getting the fp32 theta of this state to compare")
        else:
            tell(f"nothing names this state yet: getting the state at the start of round {origin.round}")
        _rebuild_and_compare(export, states, tell)
        what = (
            states.named_by if state_ref is not None else "nothing names it yet, it follows from what was agreed before"
        )
        yield f"the state at the start of round {origin.round} was rebuilt: theta digest {origin.theta}; {what}"
        yield f"the tensors are that theta, as {origin.dtype}"
    if index is None:
        yield "unchecked: the tokenizer, because the run's data set cannot be fetched"


def _tokens(origin: Origin) -> tuple[str, str | None]:
    """Return the names that tokenizer.json and tokenizer_config.json follow from."""
    return origin.tokenizer, origin.tokenizer_config


def _rebuild_and_compare(export: Export, states: AnyStates, tell: Callable[[str], None]) -> None:
    """Rebuild the state and compare. Raises Differs, and the errors of `rebuild`."""
    beside, round = export.folder.absolute().parent, export.origin.round
    try:
        with TemporaryDirectory(dir=beside, prefix=f"{export.folder.name}.verify-") as folder:
            _, state = rebuilt(states, round, Path(folder) / "work")
            if (state.digest, state.link) != (export.theta, export.link):
                raise Differs(
                    f"it is of the state {export.theta.hex()}, but round {round} of the run begins with "
                    f"{state.digest.hex()}"
                )
            _same_values(export, tensors.digest_of(state.theta, export.plan, state.outer, told(tell, "rounded")))
    except OSError as fault:
        raise ConfigError(
            f"theta cannot be rebuilt in {beside} ({fault.strerror}): it needs space for three times theta in fp32"
        ) from None


def _same_values(export: Export, expected: Digest) -> None:
    if export.digest != expected:
        raise Differs(
            f"the tensors hash to {export.digest.hex()}, the run's theta as {export.origin.dtype} to {expected.hex()}"
        )
