"""How long a look at a full subnet takes: `murmur explain` over a recorded folder with 256 hotkeys, five validators.

The chain is a real devnet's, the reports are as long as real ones; nobody trains. Prints the seconds of three calls.

    python benchmarks/bench_explain.py FOLDER
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from gauntlet.agreement import abstention
from gauntlet.average import Average
from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.evaluation import Evaluation
from gauntlet.report import Paid, Report, ReportRow
from murmur.chain import operator
from murmur.chain.keys import HotkeySigner, create_wallet
from murmur.lab.devnet import launch
from murmur.lab.devnet.genesis import Genesis
from murmur.lab.localnet.subnet import NETUID, open_subnet
from murmur.protocol import keys
from murmur.protocol.messages import REVEAL_BYTES, encode_document, encode_slot
from murmur.protocol.types import Digest, LossScore, PeerId, Pointer, Reason, Uid
from tests.specs import toy_spec

HOTKEYS, VALIDATORS, LAST = 256, 5, 3
TAO = 10**9


def build(folder: Path) -> None:
    """A run folder that looks as if a round of such a network had just been reported."""
    os.environ.setdefault("BITTENSOR_RUNTIME_CACHE_DIR", str(folder / "runtime-cache"))
    names = ["owner", *(f"validator-{n}" for n in range(VALIDATORS))]
    names += [f"miner-{n}" for n in range(HOTKEYS - len(names))]
    wallets = {name: create_wallet(name, "default", str(folder / "wallets")) for name in names}
    owner = wallets["owner"]
    balances = {wallet.coldkeypub.ss58_address: 1000 * TAO for wallet in wallets.values()}
    genesis = Genesis.fast(
        owner.coldkeypub.ss58_address, owner.hotkey.ss58_address, balances=balances, netuid=NETUID, burn_rao=0
    )
    devnet = launch.start(folder / "chain", genesis, block_seconds=0.25)
    try:

        def enter(name: str) -> None:
            chain = open_subnet(devnet.url, wallets[name])
            operator.register(chain, wallets[name])
            if name.startswith("validator"):
                operator.add_stake(chain, wallets[name], 100 * TAO)
            chain.close()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(enter, names[1:]))
        chain = open_subnet(devnet.url, owner)
        while sum(peer.validates for peer in chain.peers(chain.finalized().block)) <= VALIDATORS - 1:
            time.sleep(1.0)
        start = chain.finalized().block + 40
        spec = toy_spec(
            {"chain": devnet.genesis.removeprefix("0x"), "netuid": NETUID, "owner": owner.hotkey.ss58_address}
            | {"clock.start_block": start, "clock.block_seconds": 0.25}
        )
        run = Digest(sha256(spec.to_bytes()).digest())
        pointers = {name: Pointer("http://127.0.0.1:9", name, "read", "read-secret") for name in names}
        put(folder, "owner", keys.blob(run), spec.to_bytes())
        chain.publish(encode_slot(pointers["owner"], None, run))
        peers = {peer.id: peer.uid for peer in chain.peers(chain.finalized().block)}
        for name in names[1 : VALIDATORS + 1]:
            own = open_subnet(devnet.url, wallets[name])
            own.publish(encode_slot(pointers[name], abstention(0), None))
            own.close()
            for round in (LAST - 1, LAST):
                body = report(round, peers).to_body(spec.gauntlet)
                document = encode_document("report", run, round, body, HotkeySigner(wallets[name].hotkey))
                put(folder, name, keys.report(run, round), document)
        while chain.finalized().block < start + (LAST + 1) * spec.clock.round_blocks - 1:
            time.sleep(1.0)
        chain.close()
        home = folder / "nodes" / "miner-0"
        home.mkdir(parents=True)
        (home / "node.toml").write_text(
            f'network = "{devnet.url}"\nnetuid = {NETUID}\nowner = "{owner.hotkey.ss58_address}"\n'
        )
    finally:
        devnet.stop()
    print(f"a report has {len(document) / 1e3:.0f} kB")  # noqa: T201


def put(folder: Path, bucket: str, key: str, data: bytes) -> None:
    path = folder / "objects" / bucket / key.replace("/", ",")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def report(round: int, peers: dict[PeerId, Uid]) -> Report:
    """Everybody was evaluated often; half contribute, some are rejected."""
    seen = Average(0.123456789, 0.9)
    record = PeerRecord(
        0,
        gaps=seen,
        units=Average(0.25, 0.9),
        scores=seen,
        usual_scores=seen,
        assigned_scores=seen,
        evaluations=17,
        last_evaluated=max(0, round - 1),
        contributed=11,
    )
    rows = {
        peer: ReportRow(
            uid,
            weight=1 / len(peers),
            rejected=Reason.OUT_OF_SYNC if uid % 9 == 8 else None,
            detail="its proof is not that of the state at the round's start" if uid % 9 == 8 else "",
            contributing=uid % 9 < 8,
            evaluation=Evaluation(LossScore(0.01234567, 0.00765432), 0.1234567, 3),
            reveal=bytes(REVEAL_BYTES),
            payload=Digest(bytes([uid % 256]) * 32),
        )
        for peer, uid in peers.items()
    }
    books = [ScoreBook(at, dict.fromkeys(peers, record), seen, seen) for at in (round - 1, round)]
    return Report(round, rows, *books, 0, (), Paid(1, None, {}))


def main() -> None:
    folder = Path(sys.argv[1])
    if not (folder / "objects").exists():
        build(folder)
    for name in ("miner-100", "miner-8", "miner-249"):
        began, used = time.perf_counter(), os.times()
        command = [sys.executable, "-m", "murmur", "explain", name, "--run", str(folder)]
        answer = subprocess.run(command, capture_output=True, text=True)
        now = os.times()
        cpu = now.children_user + now.children_system - used.children_user - used.children_system
        print(f"explain {name}: {time.perf_counter() - began:.2f} s, {cpu:.2f} s of a processor")  # noqa: T201
        if answer.returncode:
            sys.exit(answer.stderr)
    print(answer.stdout)  # noqa: T201


if __name__ == "__main__":
    main()
