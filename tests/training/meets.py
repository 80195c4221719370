"""Run by test_meeting.py on two ranks: the first looks which ports of theirs are open, and a stranger that reaches the
launcher's store hands the other rank a call. The other one says which call it took."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from murmur.training.meeting import _client
from murmur.training.parallel import Ranks, _join
from tests.ports import listening


def main(out: Path) -> None:
    ranks = _join(torch.device("cpu"))
    try:
        meet(ranks, out)
    finally:
        dist.destroy_process_group()


def meet(ranks: Ranks, out: Path) -> None:
    if ranks.index == 1:
        (out / "took").write_text(json.dumps(ranks.await_call()))
        ranks.settle()
        ranks.ended()
        return
    launcher = _client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    for prefix in ("", "/worker/attempt_0", "default_pg"):
        store = dist.PrefixStore(prefix, launcher) if prefix else launcher
        dist.PrefixStore("calls", store).set("0", '["load", {"area": "a stranger\'s"}]')
    (out / "ports").write_text(json.dumps(listening(os.getppid())))
    ranks.announce("honest", {})
    ranks.settle()
    ranks.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
