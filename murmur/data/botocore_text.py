"""Text that every installation has: the documentation strings of the package botocore."""

import gzip
import html
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from murmur.protocol.errors import ConfigError

_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s+")


def documentation() -> Iterator[str]:
    """Yield one document per service: the unique documentation strings of its newest API version, tags stripped.

    Services come in the order of their names' sha256: any prefix of the stream is a fair sample.
    """
    spec = find_spec("botocore")
    if spec is None or spec.origin is None:
        raise ConfigError("the source 'botocore' needs the package botocore: pip install boto3")
    services = sorted(
        (folder for folder in (Path(spec.origin).parent / "data").iterdir() if folder.is_dir()),
        key=lambda folder: sha256(folder.name.encode()).digest(),
    )
    seen: set[str] = set()
    for service in services:
        versions = sorted(service.glob("*/service-2.json.gz"))
        if not versions:
            continue
        texts: list[str] = []
        for text in _strings(json.loads(gzip.decompress(versions[-1].read_bytes()))):
            plain = _SPACE.sub(" ", html.unescape(_TAG.sub(" ", text))).strip()
            if plain and plain not in seen:
                seen.add(plain)
                texts.append(plain)
        if texts:
            yield "\n".join(texts)


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value)
