"""docs/tour.md and docs/one_round.py: the numbers are computed anew, what they name is there, and the skeleton runs."""

import ast
import re
import runpy
from itertools import pairwise
from typing import Any

import pytest

from murmur.lab.localnet.stations import Peers, arrows, flow
from murmur.plan import presets
from murmur.protocol.messages import encode_selection
from murmur.protocol.types import Reason
from murmur.training.loader import sequences
from tests.test_documents import ROOT

TOUR = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
SKELETON = ROOT / "docs/one_round.py"
MODELS = {"demo": ("tiny", Peers(6, 5, 5, 5, 5)), "72B": ("covenant-72b", Peers(24, 24, 24, 20, 20))}
SECTIONS = re.findall(r"^## (\d+)\. (.+?)\n(.*?)(?=^## )", TOUR, re.DOTALL | re.MULTILINE)
LINES_SHARE = 0.1


@pytest.mark.parametrize("model", MODELS)
def test_the_stations_and_the_sizes_between_them_are_those_of_the_presets(model: str) -> None:
    name, peers = MODELS[model]
    flows = flow(presets.read(name).first, peers)
    assert [(int(number), title.lower()) for number, title, _ in SECTIONS] == list(enumerate(flows, start=1))
    for (_, _, text), data in zip(SECTIONS, flows.values(), strict=True):
        assert f"{model:<4}  {arrows(data)}" in text.splitlines()


def test_every_function_that_the_tour_names_is_in_the_file_that_it_links() -> None:
    cited = re.findall(r"\[([\w/]+\.py)\]\(\.\./\1\)\s+((?:`[\w.]+`(?:, | and )?)+)", TOUR)
    assert len(cited) > 20
    for path, names in cited:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        for group in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            found |= {f"{group.name}.{node.name}" for node in group.body if isinstance(node, ast.FunctionDef)}
        assert set(re.findall(r"`([\w.]+)`", names)) <= found, path


def test_the_reading_path_has_sixteen_files_and_the_length_that_is_said() -> None:
    path = TOUR.partition("## What to read next")[2]
    files = re.findall(r"\(\.\./([\w/]+\.py)\)", path)
    assert len(files) == len(set(files)) == 16
    said = re.search(r"about ([\d,]+) lines", path)
    assert said is not None
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert abs(lines / int(said[1].replace(",", "")) - 1) < LINES_SHARE


def assert_sizes(played: dict[str, Any]) -> None:
    """What flows between the stations is as large as what the skeleton has really made."""
    spec, context, drawn = played["spec"], played["spec"].model.context, played["drawn"]
    real = {
        "assignment": sequences(played["shards"].train, played["pages"], context).nbytes,
        "inner round": sum(tensor.nbytes for tensor in played["mine"].theta.values()),
        "compress": len(played["records"]),
        "seal": len(played["sealed"].object),
        "commit": len(played["signed"]),
        "check": sum(len(submission.update.records) for submission in played["checked"].passed.values()),
        "order": sum(map(len, played["ranking"].order)),
        "vote": len(encode_selection(played["selection"])),
        "score": 2 * 8 * len(played["scores"]),
        "outer step": sum(tensor.nbytes for tensor in played["mine"].theta.values()),
    }
    flows = flow(spec, Peers(4, 3, 3, 3, 3))
    assert {station: data[-1].num_bytes for station, data in flows.items()} == real
    sampled = (*drawn.assigned.values(), drawn.unassigned)
    assert flows["score"][0].shape == (sum(map(len, sampled)), context + 1)


def test_the_skeleton_is_short_and_plays_rounds_on_which_all_nodes_agree() -> None:
    source = SKELETON.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 80
    assert re.findall(r"# (\d+)\. ([a-z ]+)", source) == [(n, title.lower()) for n, title, _ in SECTIONS]
    played = runpy.run_path(str(SKELETON))
    assert len({replica.digest() for replica in played["replicas"].values()}) == 1
    assert len(played["losses"]) == 3
    assert all(after < before for before, after in pairwise(played["losses"]))
    assert_sizes(played)
    liar = played["miners"][3].peer
    assert {peer: fault.reason for peer, fault in played["checked"].rejected.items()} == {liar: Reason.MALFORMED}
    assert played["chosen"] == {miner.peer for miner in played["miners"][:3]}
    assert played["book"].peers[liar].faults == 2
