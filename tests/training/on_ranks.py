"""Run by tests/training/test_parallel.py: what a node does with its model, on any number of ranks.

`on_ranks.py OUT (idle | lose RANK)`, by torchrun: with `lose`, that rank is killed in the middle. `on_ranks.py OUT
(play SIZE.. | stop SIZE)`, by itself: plays on so many ranks and writes what came out to OUT-SIZE as JSON; with `stop`,
the first rank is interrupted inside a call and a probe. Those ranks are forked, so that torch is imported once, not
once a rank and once more by torchrun.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore

from murmur.protocol.cluster import build_cluster
from murmur.protocol.types import Digest, PeerId
from murmur.training.checkpoint import TensorState
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks, run
from murmur.training.replica import ERROR, Replica
from murmur.training.trainer import Trainer
from sparseloco.floats import NonFinite
from sparseloco.outer import OuterState
from tests.sparseloco.samples import mean_in_parts
from tests.specs import toy_spec

SPEC = toy_spec(
    {
        # Rows of 256 are cut among two and four ranks, of 128 among two; 64, 257 and gains are not.
        "model": {"vocabulary": 257, "layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "context": 32},
        "inner.sequences": 5,
        "inner.steps": 3,
    }
)

MUON = SPEC.model_copy(update={"inner": SPEC.inner.model_copy(update={"optimizer": "muon"})})


def drawn(seed: int, scale: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = SPEC.model.shapes()
    return {name: scale * torch.randn(shapes[name], generator=generator) for name in sorted(shapes)}


def bits(tensors: Any) -> str:
    return sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


def tokens(seed: int, count: int) -> Tensor:
    return torch.randint(0, 257, (count, 33), generator=torch.Generator().manual_seed(seed))


def place(replica: Replica, weights: dict[str, Tensor]) -> None:
    """Have the module hold `weights`, as if training had led there."""
    trainer = replica._trainer
    for name, tensor in trainer.tensors("given").items():
        tensor.copy_(weights[name])
    trainer.load(area="given")


def play(ranks: Ranks) -> dict[str, Any]:
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1), ranks=ranks)
    found: dict[str, Any] = {"ranks": ranks.size, "start": replica.digest().hex()}
    own = replica.own_shapes()
    saved = {name: torch.rand(shape, generator=torch.Generator().manual_seed(len(name))) for name, shape in own.items()}
    saved |= {ERROR + name: error for name, error in drawn(2, 1e-3).items()}
    replica.load_own(TensorState(saved, {"adam_steps": 7}))
    back = replica.own_state()
    found["own"] = [bits(back.tensors) == bits(saved), back.facts["adam_steps"]]

    theta_r = {name: replica.theta[name] - moved for name, moved in drawn(3, 1e-2).items()}
    place(replica, theta_r)
    update = replica.compress()
    found["payload"] = update.digest.hex()
    found["error"] = bits({n: t for n, t in replica.own_state().tensors.items() if n.startswith(ERROR)})

    bad = {name: tensor.clone() for name, tensor in theta_r.items()}
    bad["layers.1.ffn.gate.weight"][-1, -1] = float("nan")  # the last rank's
    place(replica, bad)
    try:
        replica.compress()
    except NonFinite:
        found["refused"] = True
    found["error kept"] = bits({n: t for n, t in replica.own_state().tensors.items() if n.startswith(ERROR)})

    outer, norms = replica.outer, update.norms
    replica.outer = OuterState(1, tuple(norm / 9 for norm in norms.tensors), norms.whole / 15)
    place(replica, {name: replica.theta[name] - moved for name, moved in drawn(6, 1e-2).items()})
    sent = replica.compress()
    found["restrained"] = [sent.digest.hex(), sent.norms.whole <= norms.whole / 5]
    found["kept back"] = bits({n: t for n, t in replica.own_state().tensors.items() if n.startswith(ERROR)})
    replica.outer = outer

    scales = replica.outer_step([update, update], alpha=0.5, aggregate="mean")
    found["theta"] = [replica.digest().hex(), bits(replica.theta)]
    found["proof"] = replica.sync_proof(Digest(bytes(32)), PeerId(bytes(32))).hex()
    found["fewer losses"] = replica.losses(tokens(4, 3))
    found["losses"] = replica.losses(tokens(4, 71))  # more tokens than the ranks share memory for
    with replica.probe(update, scales[0], 0.5):
        found["probed"] = replica.losses(tokens(4, 3))
    found["losses again"] = replica.losses(tokens(4, 71))
    replica.restore_to_error_feedback(update)
    found["given back"] = bits({n: t for n, t in replica.own_state().tensors.items() if n.startswith(ERROR)})

    done: list[int] = []
    stopped = replica.inner_round(
        tokens(5, 15), on_step=lambda step, loss: done.append(step), stopped=lambda: len(done) == 2
    )
    found["stopped"] = len(stopped.losses)
    replica.load_own(TensorState(saved, {"adam_steps": 7}))
    found["trained"] = replica.inner_round(tokens(5, 15)).losses
    found["after"] = replica.losses(tokens(4, 3))
    found["finite"] = len(replica.compress().records)
    return found | trained_by_muon(ranks) | {"int8": in_int8(ranks)}


def play_into(out: Path, ranks: Ranks) -> None:
    Path(f"{out}-{ranks.size}").write_text(json.dumps(play(ranks)))


def in_int8(ranks: Ranks) -> list[str]:
    """Digests of two payloads of every value, and of theta after each."""
    table = SPEC.training.model_dump(mode="json")
    changes = {"outer": {"alpha": 0.7, "momentum": 0.9}, "cluster": {"exchange": "int8"}}
    spec = build_cluster(table | changes, "a test")
    replica = Replica(spec, genesis_theta(spec.model, 1), ranks=ranks)
    found = []
    for seed in (3, 4):
        place(replica, {name: replica.theta[name] - moved for name, moved in drawn(seed, 1e-2).items()})
        update = replica.compress()
        replica.outer_step(mean_in_parts([update, None], spec.layout, 2), alpha=0.7, aggregate="mean")
        found += [update.digest.hex(), replica.digest().hex()]
    return found


def trained_by_muon(ranks: Ranks) -> dict[str, Any]:
    """Two rounds, and between them the optimizer's state there and back."""
    replica = Replica(MUON, genesis_theta(MUON.model, 1), ranks=ranks)
    replica.inner_round(tokens(5, 15))
    own = replica.own_state()
    kept = {name: tensor.clone() for name, tensor in own.tensors.items()}
    replica.load_own(TensorState(kept, own.facts))
    return {
        "own of muon": [bits(replica.own_state().tensors) == bits(kept), own.facts["adam_steps"]],
        "trained by muon": replica.inner_round(tokens(6, 15)).losses,
    }


def idle(ranks: Ranks, out: Path) -> None:
    """Say that all ranks are there, and wait for the end."""
    Replica(SPEC, genesis_theta(SPEC.model, 1), ranks=ranks)
    out.touch()
    time.sleep(300)


def stop(ranks: Ranks) -> None:
    """Be interrupted in the middle of what all ranks do, between a probe and its end."""
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1), ranks=ranks)

    def on_step(step: int, loss: float) -> None:
        raise KeyboardInterrupt

    with replica.probe(replica.compress(), (1.0,) * len(SPEC.layout.tensors), 0.5):
        replica.inner_round(tokens(5, 15), on_step=on_step)


def lose(ranks: Ranks, out: Path, rank: int) -> None:
    """Train, and have one rank killed after the second step."""
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1), ranks=ranks)

    def on_step(step: int, loss: float) -> None:
        if step == 1:
            os.kill(int((out.parent / f"pid-{rank}").read_text()), signal.SIGKILL)

    replica.inner_round(tokens(5, 15), on_step=on_step)
    replica.inner_round(tokens(5, 15))


def fork(size: int, out: Path, program: Callable[[Ranks], None]) -> None:
    """Run on `size` ranks, in the environment that torchrun gives them; the first that fails ends all. As torchrun, we
    keep the store that carries the calls: a first rank that has ended would take it from the others."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = set()
    for rank in range(size):
        if pid := os.fork():
            ranks.add(pid)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        try:
            begin(out, program)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of the parent's may run here
            traceback.print_exc()
            os._exit(1)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank of {size} ended with {os.waitstatus_to_exitcode(status)}")


def begin(out: Path, program: Callable[[Ranks], None]) -> None:
    (out.parent / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    run(program, Trainer, torch.device("cpu"))


def main() -> None:
    out, what, *words = Path(sys.argv[1]), *sys.argv[2:]
    if what == "idle":
        begin(out, lambda ranks: idle(ranks, out))
    elif what == "lose":
        begin(out, lambda ranks: lose(ranks, out, int(words[0])))
    else:
        importlib.import_module("torch.distributed.fsdp")  # once for all ranks
        for size in map(int, words):
            fork(size, out, stop if what == "stop" else partial(play_into, out))


if __name__ == "__main__":
    main()
