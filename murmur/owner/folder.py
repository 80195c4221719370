"""The run folder that `murmur run create` leaves for `murmur run publish`: one folder per run.

draft.json        the spec without its first block, and the data's location; written last: marks completion
theta_0/          theta_0's checkpoint
data/             the data set, where it was made for this run
spec.json         the spec as it is published, once it is sealed
owner.toml        network, wallet and bucket as they were given, without secrets
amendments/       the amendments that the preset plans for later, one file each, for `murmur run amend`
posted/           every amendment that was settled or pending at a look of the owner's, for a new bucket
RUN/run.json      the amendments that were settled at the owner's last look
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur import files
from murmur.protocol.errors import ConfigError
from murmur.protocol.run import Amendment
from murmur.protocol.spec import RunSpec, build, parse_text
from murmur.protocol.types import Digest

DRAFT, THETA, DATA, SPEC, OWNER, AMENDMENTS, POSTED = (
    "draft.json", "theta_0", "data", "spec.json", "owner.toml", "amendments", "posted"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An owner's folder. `table`: the draft of the spec, theta_0's digest in it."""

    path: Path
    table: Mapping[str, Any]
    data: Path

    @property
    def theta(self) -> Digest:
        return Digest(bytes.fromhex(self.table["genesis_checkpoint"]))

    @property
    def spec(self) -> RunSpec | None:
        """The spec as it was sealed last; None before. Raises ConfigError for an invalid file."""
        path = self.path / SPEC
        return parse_text(path.read_text(encoding="utf-8"), str(path)) if path.exists() else None

    def seal(self, spec: RunSpec) -> None:
        """Save the spec, before any of it is published."""
        write(self.path / SPEC, spec.to_bytes())

    def keep(self, amendments: Iterable[Amendment]) -> None:
        """Save amendments that the owner's slot leads to."""
        folder = self.path / POSTED
        folder.mkdir(exist_ok=True)
        for amendment in amendments:
            write(folder / f"{amendment.digest.hex()}.json", amendment.to_bytes())

    @property
    def documents(self) -> dict[Digest, bytes]:
        """The sealed spec and the saved amendments, by digest: what the owner's slot may lead to."""
        spec = self.spec
        found = [spec.to_bytes()] if spec is not None else []
        found += [path.read_bytes() for path in sorted((self.path / POSTED).glob("*.json"))]
        return {Digest(sha256(document).digest()): document for document in found}


def open_folder(path: Path) -> RunFolder:
    """Open a folder. Raises ConfigError for one that `murmur run create` has not finished, or whose draft is no longer
    a valid spec."""
    file = path / DRAFT
    try:
        body = json.loads(file.read_bytes())
        build(body["spec"], str(file))
        return RunFolder(path, body["spec"], Path(body["data"]))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} contains no run: {DRAFT} is missing. Create one, or continue an interrupted one: murmur run create"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ConfigError(f"{file} cannot be read ({fault}): create the run again in another folder") from None


def finish(path: Path, table: Mapping[str, Any], data: Path) -> RunFolder:
    """Mark the folder complete by writing its draft."""
    write(path / DRAFT, (json.dumps({"spec": table, "data": str(data)}, indent=2) + "\n").encode())
    return RunFolder(path, table, data)


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, readable by its owner only: its data are on disk before it has its name."""
    files.write(path, data, mode=0o600)


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table of plain values and one level of tables as TOML; JSON's literals for them are TOML's."""
    plain = [f"{name} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            plain += [f"[{name}]", *(f"{key} = {json.dumps(entry)}" for key, entry in value.items())]
    return "\n".join(plain) + "\n"
