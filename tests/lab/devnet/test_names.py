"""Every error and event that the devnet can raise has a name that the pinned runtime's metadata knows."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from murmur.lab import devnet
from murmur.lab.devnet.codec import DEFAULT_PALLET, Codec


def calls(attribute: str) -> Iterator[list[str]]:
    """The literal strings among the arguments of every call of a method of this name."""
    (folder,) = devnet.__path__
    for path in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute:
                yield [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]


def test_every_error_is_one_of_the_runtime(codec: Codec) -> None:
    raised = {(pallet, error) for error, *pallets in calls("ensure") for pallet in pallets or [DEFAULT_PALLET]}
    raised |= {(strings[0], strings[1]) for strings in calls("fail") if len(strings) == 2}
    assert len(raised) > 30
    for pallet, error in raised:
        assert codec.module_error(pallet, error)


def test_every_event_is_one_of_the_runtime(codec: Codec) -> None:
    emitted = {(strings[0], strings[1]) for strings in calls("emit") if len(strings) >= 2}
    assert len(emitted) > 10
    types = {entry["id"]: entry["type"] for entry in json.loads(codec._runtime.registry_json())["types"]}
    runtime = next(kind for kind in types.values() if (kind.get("path") or [""])[-1] == "RuntimeEvent")
    known = {
        (variant["name"], event["name"])
        for variant in runtime["def"]["variant"]["variants"]
        for event in types[variant["fields"][0]["type"]]["def"]["variant"]["variants"]
    }
    assert emitted <= known
