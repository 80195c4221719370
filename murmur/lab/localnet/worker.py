"""One node's process on a local network: a measured rehearsal, then the real program.

`python -m murmur.lab.localnet.worker ROLE --config FILE [--draft SPEC --ready FILE --go FILE] [--fault KIND]
[--own-link]`

Before the spec is sealed, the length that a round needs on this machine is unknown. So every process does a round's
work a few times, all concurrently, over the real chain and store, and writes the seconds to a file. When the go file
appears the spec is on chain; from then on this is `neurons/miner.py` or `neurons/validator.py`. Without a draft it is
that at once.

With `--own-link` all of the node's traffic with buckets passes the link in its configuration.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gauntlet.sketch import Sample, Sketch
from murmur import files
from murmur.data.shards import Shards
from murmur.lab.localnet.faults import KINDS
from murmur.node.config import adapters
from murmur.node.config.adapters import connect, open_ports
from murmur.node.config.ports import Opener, Ports
from murmur.node.config.settings import NodeConfig, load
from murmur.node.doctor.bucket_trial import require_read_only
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.node.program.process import log_to_stderr, run_program
from murmur.node.program.shared import on_ranks
from murmur.node.telemetry.events import Stopwatch
from murmur.protocol.assignment import page_at
from murmur.protocol.messages import REVEAL_BYTES, encode_slot, parse_envelope
from murmur.protocol.spec import RunSpec, parse_text
from murmur.protocol.types import Page, PeerId
from murmur.rounds import start_miner, start_validator
from murmur.rounds.miner import Miner
from murmur.rounds.validator import Validator
from murmur.training import checkpoint
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks
from murmur.training.probe import Prober
from murmur.training.replica import Replica
from sparseloco import ops, wire
from sparseloco.update import Update
from storage.collect import gather
from storage.exchange import Source, Wanted
from storage.seal import seal, unseal

REPEATS = 3
ROLES = ("miner", "validator")
KEY = "rehearsal"
POLL_SECONDS = 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Rehearse, wait for the spec, then run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m murmur.lab.localnet.worker", description="one node of a local network"
    )
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--config", required=True)
    parser.add_argument("--draft", type=Path, help="rehearse: the run's spec as far as it is known")
    parser.add_argument("--ready", type=Path, help="written with the measured seconds")
    parser.add_argument("--go", type=Path, help="appears when the spec is sealed")
    parser.add_argument("--fault", help="misbehave like this (murmur/lab/localnet/faults.py)")
    parser.add_argument("--own-link", action="store_true", help="reach every bucket as our own")
    options = parser.parse_args(argv)
    config = load("worker", "", ["--config", options.config], os.environ)
    log_to_stderr(config.log_level)

    if options.own_link:
        reach_all_at(config.bucket.endpoint)

    def live(ranks: Ranks) -> None:
        if options.draft is not None:
            measured = rehearse(options.role, config, options.draft, ranks)
            files.write(options.ready, json.dumps(measured).encode())
            while not options.go.exists():
                time.sleep(POLL_SECONDS)
            shutil.rmtree(config.home / KEY)
        if options.role == "validator":
            start_validator.play(config, Validator, ranks)
        else:
            start_miner.play(config, KINDS[options.fault] if options.fault else Miner, ranks)

    on_ranks(config.codec, config.device, live)


def reach_all_at(endpoint: str) -> None:
    """Make this process reach the bucket of every pointer at `endpoint`: all links lead to the same server, which knows
    buckets by their names."""
    usual = adapters.opener

    def opener(*, local: bool) -> Opener:
        opened = usual(local=local)
        return lambda pointer: opened(replace(pointer, endpoint=endpoint))

    adapters.opener = opener


def rehearse(role: str, config: NodeConfig, draft: Path, ranks: Ranks) -> dict[str, list[float]]:
    """Return the seconds of each phase of a round, measured concurrently with all other processes."""
    spec = parse_text(draft.read_text(), str(draft))
    ports = open_ports(config, connect(config), local=spec.local)
    require_read_only(ports.bucket, ports.pointer, local=spec.local)
    assert config.data is not None
    shards = Shards.open(config.data, index_digest=spec.data.index_digest)
    shards.train.verify()
    torch.manual_seed(0)
    replica = Replica(spec, genesis_theta(spec.model, 0), ranks=ranks)
    stage = _Rehearsal(role, spec, ports, shards, replica, config.home)
    stage.warm_up()
    for _ in range(REPEATS):
        stage.round()
    return stage.seconds


class _Rehearsal:
    """One round's work of a node, before the network agrees on anything."""

    def __init__(self, role: str, spec: RunSpec, ports: Ports, shards: Shards, replica: Replica, home: Path) -> None:
        self.role, self.spec, self.ports, self.shards, self.replica = role, spec, ports, shards, replica
        self.folder = home / KEY
        self.seconds: dict[str, list[float]] = {}
        self.updates: dict[PeerId, Update] = {}

    def warm_up(self) -> None:
        """Publish the pointer and an object, and wait for another peer's object: first calls are slow."""
        self.ports.chain.publish(encode_slot(self.ports.pointer))
        self._compute()
        self._upload()
        until = time.monotonic() + 30
        while not self._fetch() and time.monotonic() < until:
            time.sleep(0.5)
        self._advance()
        if self.role == "validator":
            self._check()

    def round(self) -> None:
        """Do one round's work, phase by phase."""
        self._measured("compute", self._compute)
        self._measured("upload", self._upload)
        self._measured("commit", lambda: self.ports.chain.publish(encode_slot(self.ports.pointer)))
        self._measured("reveal", self._reveal)
        if self.role == "validator":
            self._measured("check", self._check)
            self._measured("evaluate", self._evaluate)
        self._measured("advance", self._advance)

    def _measured(self, phase: str, work: Callable[[], object]) -> None:
        with Stopwatch() as watch:
            work()
        self.seconds.setdefault(phase, []).append(watch.seconds)

    def _compute(self) -> None:
        spec = self.spec
        pages = [page_at(index, spec.page_tokens) for index in range(spec.pages_per_round)]
        if self.role == "miner":
            self.replica.inner_round(sequences(self.shards.train, pages, spec.model.context))
        update = self.replica.compress()
        self.updates[self.ports.signer.peer] = update
        plaintext = wire.encode(self.replica.digest(), update, bytes(spec.trace.num_bytes))
        self.sealed = seal(plaintext, run=spec.digest, round=0, signer=self.ports.signer)
        checkpoint.save(self.folder, self.replica.own_state())

    def _upload(self) -> None:
        self.ports.bucket.put(KEY, self.sealed.object, timeout_seconds=30.0)

    def _reveal(self) -> None:
        self.replica.sync_proof(self.ports.chain.finalized().hash, self.ports.signer.peer)
        self.ports.bucket.put(f"{KEY}-key", bytes(REVEAL_BYTES), timeout_seconds=30.0)

    def _fetch(self) -> int:
        chain = self.ports.chain
        peers = chain.peers(chain.finalized().block)
        sources = Sources(peers, self.ports.open_pointer)
        wanted = [
            Wanted(peer.id, (Source(opener, KEY),), self.spec.object_bytes, lambda data: True)
            for peer in peers
            if (opener := sources.bucket_of(peer.id)) is not None and peer.id != self.ports.signer.peer
        ]
        found = gather(wanted, timeout_seconds=30.0, max_threads=FETCH_THREADS)
        return sum(isinstance(data, bytes) for data in found.values())

    def _advance(self) -> None:
        for _ in range(2):
            self.ports.chain.peers(self.ports.chain.finalized().block)
        self._fetch()
        count = len(self.ports.chain.peers(self.ports.chain.finalized().block))
        mine = self.updates[self.ports.signer.peer]
        self.replica.outer_step([mine] * count, alpha=0.1, aggregate=self.spec.outer.aggregate)
        checkpoint.save(self.folder, self.replica.consensus_state())

    def _check(self) -> None:
        count = self._fetch()
        envelope = parse_envelope(self.sealed.envelope)
        sample, sketches = Sample(self.spec.layout, self.sealed.digest), []
        for _ in range(count):
            plaintext = unseal(envelope, self.sealed.key, self.sealed.ciphertext)
            submission = ops.parse_submission(
                self.ports.signer.peer, 0, plaintext, self.spec.layout, self.spec.trace.num_bytes
            )
            submission.update.norms  # noqa: B018
            update = submission.update
            sketches.append(Sketch(submission.peer, 0, update.digest, sample.excerpt(update.records)))
            self.ports.bucket.put(f"{KEY}-mirror", self.sealed.object, timeout_seconds=30.0)
        sample.near(sketches, count, self.spec.gauntlet.copy_overlap)

    def _evaluate(self) -> None:
        spec = self.spec
        context = spec.model.context
        registered = self.ports.chain.peers(self.ports.chain.finalized().block)
        count = sum(not peer.validates and peer.id != spec.owner_id for peer in registered)
        mine = self.updates[self.ports.signer.peer]
        scales = (1.0,) * len(spec.layout.tensors)
        peers = min(count, spec.gauntlet.evaluations)
        losses_each = 2 + min(spec.gauntlet.references, max(0, peers - 1))
        pages = tuple(Page(index * context, context) for index in range(spec.gauntlet.sample_sequences))
        with Prober(self.replica, self.shards.train, spec.gauntlet.probe_step) as prober:
            for _ in range(peers):
                prober.losses(None, scales, pages)
                for _ in range(losses_each):
                    prober.losses(mine, scales, pages)


if __name__ == "__main__":
    sys.exit(run_program(main))
