"""A miner's account, from validators' newest signed reports: claims, which `murmur audit` checks."""

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from gauntlet.account import account, outcome
from gauntlet.agreement import mirrors
from murmur.cli import network
from murmur.node.config.settings import home
from murmur.node.fetch.reports import Reports
from murmur.node.fetch.sources import Sources
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.telemetry.event_tail import read_event_tail
from murmur.node.telemetry.trouble import sentence
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.ports import Chain
from murmur.protocol.types import Peer, PeerId, hotkey

MOST_READ = 5
"""Validators whose reports are read, those with the most stake: a report of 256 hotkeys has 450 kB, read in a tenth of
a second."""
SHOWN_IN_FULL = 2


def show(miner: str, options: argparse.Namespace) -> int:
    """Print the account of a miner by its name or hotkey. Raises ConfigError when no validator reports on it.

    Where the chain does not answer, its own node may say why, if its home is on this machine."""
    try:
        return _show(miner, options)
    except ChainError:
        if options.run is not None or not (own := _told_here(home(network.named("murmur explain", options)), miner)):
            raise
    sys.stdout.write("the chain does not answer, so nobody's reports can be found\n" + "\n".join(own) + "\n")
    return 1


def _show(miner: str, options: argparse.Namespace) -> int:
    there = network.open_network("murmur explain", options)
    peer = there.peer(miner, "MINER")
    chain, run = there.ports.chain, there.run
    head = chain.finalized().block
    peers = chain.peers(head)
    newest = run.clock.round_at(head)
    mine = next((one for one in peers if one.id == peer), None)
    stakes = {one.id: one.stake for one in peers}
    counted = mirrors(run, head, peers)
    total = sum(stakes[one] for one in counted) or 1
    asked = counted[:MOST_READ]
    reports = Reports(run, there.ports, Sources(peers, there.ports.open_pointer))
    found = {one: report for one, report in reports.newest(newest, asked).items() if peer in report.rows}
    full = list(islice(found, SHOWN_IN_FULL))
    for number in {found[one].round - 1 for one in full}:
        reports.of(number, full)
    where = f"uid {mine.uid}" if mine is not None else "no longer registered"
    lines = [f"{_titled(there, peer)}, {where}, in run {run.first.name} (round {newest} now)"]
    for validator, report in found.items():
        spec = run.spec_at(report.round).gauntlet
        stake = f"{100 * stakes[validator] / total:.0f} % of the validators' stake"
        lines += ["", f"validator {_titled(there, validator)} ({stake}), round {report.round}:"]
        if validator in full:
            before = reports.of(report.round - 1, [validator]).get(validator)
            lines += [f"  {line}" for line in account(peer, report, before, spec)]
            lines.append(f"  {on_chain(chain, head, validator, mine)}")
        else:
            lines.append(f"  {outcome(report.rows[peer], report.after.peers.get(peer), spec)}")
    homes = sorted(there.home.glob("nodes/*")) if there.recorded else [there.home]
    own = [line for place in homes for line in _told_here(place, hotkey(peer))]
    if not found:
        raise ConfigError("\n".join([f"{there.called(peer)}: {_unreported(mine, counted)}", *own]))
    lines += [""] * bool(own) + own
    if len(counted) > len(asked):
        rest = 100 * sum(stakes[one] for one in counted[MOST_READ:]) / total
        lines += ["", f"not read: {len(counted) - len(asked)} more validators, with {rest:.0f} % of the stake"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _unreported(mine: Peer | None, counted: Sequence[PeerId]) -> str:
    """Return why no report lists a hotkey, and what to do."""
    if mine is None:
        return (
            "it is not registered on this subnet, so nobody judges it. Register it (btcli subnet register), or check "
            "the hotkey, --netuid and --owner"
        )
    if not counted:
        return (
            "no validator counts in this run now, so nobody is judged or paid: none that has voted holds a validator "
            "permit. That is the validators' to mend, with stake; a miner goes on as it is"
        )
    return (
        f"no recent report of the {len(counted)} validators that count lists it. After its first round one will; if "
        "rounds pass, the validators are late or their buckets cannot be read: murmur dashboard shows which"
    )


def _told_here(home: Path, address: str) -> list[str]:
    """Return what the node in `home` says that keeps it from its work, if it is this hotkey's."""
    tail = read_event_tail(home)
    return [f"its node here: {sentence(one)}" for one in tail.troubles(time.time())] if tail.hotkey == address else []


def on_chain(chain: Chain, block: int, validator: PeerId, miner: Peer | None) -> str:
    """Return a validator's weight for this miner on chain, as of `block`."""
    payer = next((peer for peer in chain.peers(block) if peer.id == validator), None)
    if payer is None or miner is None:
        return "on chain: nothing"
    row = chain.weights(block, payer.uid)
    share = row.get(miner.uid, 0) / (sum(row.values()) or 1)
    try:
        stands = chain.stands_from(payer.last_update)
    except ChainError:
        stands = block  # set so long ago that this chain node has pruned it
    newer = f"; newer weights, of block {payer.last_update}, are not revealed yet" if stands is None else ""
    return f"on chain: {100 * share:.2f} % of this validator's weights{newer}"


def _titled(there: OpenedNetwork, peer: PeerId) -> str:
    name = there.names.get(peer)
    return f"{name} ({hotkey(peer)})" if name else hotkey(peer)
