"""Invariants of every history: checked after each event and each round; every permitted exception has a named reason.

The witness sees all nodes and every fault, which no node does. It changes nothing and draws nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import IO, Any

from gauntlet.agreement import electorate
from murmur.lab.simulation.chain import BLOCK_SECONDS
from murmur.lab.simulation.faults import CALM_ROUNDS, Incident
from murmur.lab.simulation.modelled_replica import START_LOSS
from murmur.lab.simulation.network import Network, SimulatedNode
from murmur.lab.simulation.oracle import Oracle
from murmur.lab.simulation.result import Result
from murmur.lab.simulation.signer import hash_verify
from murmur.lab.simulation.tally import MOST_COMMITS, Tally
from murmur.node.sync.checkpoints import kept_from, parse_shown
from murmur.protocol import keys
from murmur.protocol.types import hotkey

RECOVERY_ROUNDS = 2.0
"""Rounds within which a restarted node is at the current round again, if no other fault hits it."""
ORACLE_ROUNDS = 3
"""Rounds after a round at which it is compared with the oracle: most nodes have applied it by then."""
RETURN_ROUNDS = 3
"""Rounds into a calm after which the run continues."""
NO_CHAIN = ("chain dead", "finality stalls")
"""Forks and late blocks are no excuse: windows are counted in blocks, and leave room for a repeated post."""
AFTERMATH_SECONDS = 30.0
"""Delay that a short fault causes after it has ended: time-outs that expire, pauses between tries."""


@dataclass
class _Seen:
    """The witness's knowledge of one member."""

    incidents: list[Incident] = field(default_factory=list)
    started: float | None = None
    """Start of the process that has not recovered yet."""
    down_since: float | None = None
    """Death of its last process, until the next one has recovered."""
    faults: dict[str, int] = field(default_factory=dict)
    reported: int = -1
    apart: bool = False
    """It skipped a round that it could not follow, and has not caught up yet: it knows that its theta may differ from
    the others'."""
    caught_up: float = 0.0
    """When it last caught up with the others: it began its round later than they."""
    gathered: int = -1
    """The newest gathered round."""
    weighed: int = -1
    """The round in which it has set weights and has not reported yet."""


class Witness:
    """Observes a simulation to its end. `trace`: a file for the history, one JSON line per event."""

    def __init__(self, rounds: int, trace: IO[str] | None = None) -> None:
        self.rounds = rounds
        self.network: Network | None = None
        self.calm: Callable[[int], bool] = lambda round: True
        self.on_round: Callable[[int], None] = lambda rounds: None
        """Called with the number of finished rounds whenever another one is finished."""
        self.result = Result(0, rounds)
        self.round = 0
        """The first round that is not over yet."""
        self._trace = trace
        self._history = sha256()
        self._seen: dict[str, _Seen] = {}
        self._world: list[Incident] = []
        self._starts: dict[int, str] = {}
        """Theta at the start of every round, as the first honest node had it."""
        self._void: dict[int, str | None] = {}
        """Void rounds, and the reasons."""
        self._applied: set[int] = set()
        self._applied_by: dict[int, list[tuple[str, frozenset[str]]]] = {}
        """Contributors by round, as honest nodes have applied them (empty: void), until they are compared with the
        oracle."""
        self._recoveries: list[float] = []
        self._tally = Tally()
        self._committed: dict[int, set[str]] = {}
        """Members that have committed in time, by round."""
        self._measured = -1
        """The newest round after which an honest validator measured the held-out loss."""
        self._revealed: dict[int, set[str]] = {}
        """Members that have published their key, by round."""

    # --- what it hears -----------------------------------------------------------------------------------------

    def watch(self, network: Network, calm: Callable[[int], bool]) -> None:
        self.network, self.calm = network, calm
        self.result.seed = network.seed
        self._oracle = Oracle(network.run)
        network.blocks.on_block = self._block

    def fault(self, incident: Incident) -> None:
        """Record that a fault begins."""
        self.result.faults += 1
        if incident.member is None:
            self._world.append(incident)
        else:
            self._of(incident.member).incidents.append(incident)
        who = incident.member.name if incident.member else "everybody"
        self._write(who, incident.kind, -1, {"seconds": round(incident.ended - incident.began, 3)})

    def told(self, member: SimulatedNode, event: str, round: int, fields: dict[str, Any]) -> None:
        """Record an event of a node, or of its process."""
        self._write(member.name, event, round, fields)
        seen = self._of(member)
        if event == "killed":
            seen.down_since = seen.down_since if seen.down_since is not None else self._now
            seen.started = None
        elif event == "ended":
            seen.down_since = seen.down_since if seen.down_since is not None else self._now
            seen.started = None
            if not self._excused(member, self._now - 900.0, self._now) and fields["times"] == 1:
                self._broke(f"{member.name} ended by itself: {fields['fault']}")
        elif event == "started":
            seen.started = self._now
        elif event == "applied":
            self._decided(member, round, fields)
        elif event == "not_followed":
            seen.apart = True
        elif event == "caught_up":
            seen.apart, seen.caught_up = False, self._now
            self._agree(member, round, fields["theta"])
        elif event == "gathered":
            seen.gathered = round
        elif event == "revealed":
            self._revealed.setdefault(round, set()).add(member.name)
        elif event == "held_out" and not member.hostile and round >= self._measured:
            self._measured, self.result.loss_fall = round, START_LOSS - fields["val_loss"]
        elif event == "weights":
            self._weighed(member, round, seen)
            self._tally.pays(self._network, member, fields["weights"])
        elif event in ("committed", "interrupted") and not member.validates:
            self._tally.worked.add((member.name, round))
            if event == "committed" and fields["in_time"]:
                self._committed.setdefault(round, set()).add(member.name)
            if event == "committed" and not member.hostile and self._tally.wastes(member.name, round):
                self.result.wasteful += 1
                self._broke(f"{member.name} has committed to round {round} more than {MOST_COMMITS} times")
        elif event == "weights_refused" and not member.hostile:
            self.result.refused_weights += 1
            self._broke(f"{member.name}: the weights of round {round} do not stand in block {fields['block']}")
        elif event == "reported":
            self._observed(member, round, fields["peers"], seen)
            self._booked(member, round, fields["peers"], seen)

    def finish(self) -> Result:
        """Return the verdict."""
        result = self.result
        result.void_rounds = len(self._void)
        for why in self._void.values():
            if why is not None:
                result.explained[why] = result.explained.get(why, 0) + 1
        result.recovery_rounds_p99 = _percentile(self._recoveries, 0.99)
        self._tally.close(self._network, result)
        result.history = self._history.hexdigest()
        return result

    # --- invariants --------------------------------------------------------------------------------------------

    def _decided(self, member: SimulatedNode, round: int, fields: dict[str, Any]) -> None:
        if member.hostile:
            return
        if not fields["void"]:
            self._of(member).apart = False  # a selection is applied to the theta that it names
        if not self._of(member).apart:
            self._applied_by.setdefault(round, []).append((member.name, frozenset(fields["contributing"])))
        self._agree(member, round + 1, fields["theta"])
        if round not in self._applied:
            self._applied.add(round)
            self._tally.contributed(self._network, fields["contributing"])
            if fields["void"]:
                self._void[round] = self._why_void(round)
                if self._void[round] is None:
                    self.result.void_unexplained += 1
                    self._broke(f"round {round} is void, and nothing explains it")
        elif fields["void"] != (round in self._void):
            self.result.disagreements += 1
            self._broke(f"{member.name} takes round {round} for {'void' if fields['void'] else 'valid'}, others do not")

    def _agree(self, member: SimulatedNode, round: int, theta: str) -> None:
        """Check that all honest nodes start a round from one theta, except those that report to be apart."""
        if member.hostile:
            return
        seen = self._of(member)
        if seen.apart:
            seen.apart = self._starts.get(round) != theta
        elif self._starts.setdefault(round, theta) != theta:
            self.result.disagreements += 1
            self._broke(f"{member.name} starts round {round} from another theta than others")

    def _why_void(self, number: int) -> str | None:
        """Return why a round had to be void; None when the rules promise that it is not."""
        network = self._network
        clock = network.run.clock
        begin, end = self._time(clock.commit_deadline(number)), self._now
        if self._hit([incident for incident in self._world if incident.kind in NO_CHAIN], begin, end):
            return "the chain"
        miners = [m for m in network.members.values() if not m.validates and not m.gone]
        away = [
            m
            for m in miners
            if self._hit_or_down(m, self._time(clock.start(number)), self._time(clock.reveal_deadline(number)))
        ]
        peers = network.world.state(clock.commit_deadline(number)).peers
        stakes = electorate(network.run, number, peers)
        out = {
            peer: stake
            for peer, stake in stakes.items()
            if (m := network.by_hotkey[hotkey(peer)]).hostile or self._of(m).apart or self._hit_or_down(m, begin, end)
        }
        if 2 * sum(out.values()) >= sum(stakes.values()):
            return "half of the stake"
        if 2 * len(away) > len(miners):
            return "the miners"
        return None

    def _booked(self, member: SimulatedNode, number: int, peers: dict[str, Any], seen: _Seen) -> None:
        """Check that no undisturbed honest validator books a fault on an undisturbed honest peer."""
        clock = self._network.run.clock
        follows = seen.reported == number - 1
        seen.reported = number
        for address, row in peers.items():
            before, now = seen.faults.get(address, 0), row.get("faults", 0)
            seen.faults[address] = now
            peer = self._network.by_hotkey.get(address)
            if now <= before or not follows or "rejected" not in row or peer is None or peer.hostile or member.hostile:
                continue
            begin, end = self._time(clock.start(number - 1)), self._time(clock.sample_block(number))
            if self._hit(self._world, begin, end) or self._hit_or_down(peer, begin, end):
                continue
            if self._hit_or_down(member, self._time(clock.commit_deadline(number)), end):
                continue
            if self._by_chance(address, number, row):
                continue
            self.result.honest_faults_booked += 1
            self._broke(f"{member.name} books {row['rejected']} on {peer.name} in round {number}; both were up")

    def _by_chance(self, address: str, number: int, row: dict[str, Any]) -> bool:
        """Whether a hotkey has repeated its own payload from the same theta, after void rounds.

        The linear problem has so few payloads that honest work may produce the very same one (seen once in 30,000
        rounds). In a language model's, millions of values would have to agree.
        """
        details = {f"equals the payload of {address} in round {before}": before for before in range(number)}
        before = details.get(row["detail"])
        return before is not None and all(void in self._void for void in range(before, number))

    def _weighed(self, member: SimulatedNode, number: int, seen: _Seen) -> None:
        """Check that weights follow from rounds that the validator observed: it looked at what peers left, and held the
        theta that their work started from."""
        seen.weighed = number
        if member.hostile:
            return
        if seen.apart:
            self.result.unobserved_weights += 1
            self._broke(f"{member.name} sets weights in round {number} by a theta of its own")
        if seen.gathered != number:
            self.result.unobserved_weights += 1
            self._broke(f"{member.name} sets weights in round {number}, and has last read keys in {seen.gathered}")

    def _observed(self, member: SimulatedNode, number: int, peers: dict[str, Any], seen: _Seen) -> None:
        """Check that a validator that has set weights in this round read the keys of at least half of the honest
        miners that have shown theirs. Which keys hostile ones show it is theirs to choose."""
        if member.hostile or seen.weighed != number:
            return
        seen.weighed = -1  # after a restart it reports the round anew, from what is left of it
        there = [hotkey(self._network.members[name].peer) for name in self._revealed.get(number, ())]
        honest = [address for address in there if not self._network.by_hotkey[address].hostile]
        read = [address for address in honest if _is_read(peers.get(address, {}))]
        if 2 * len(read) < len(honest):
            self.result.unobserved_weights += 1
            told = f"{len(read)} of {len(honest)} honest miners' keys"
            self._broke(f"{member.name} has set weights in round {number} from {told}")

    def _recover(self, member: SimulatedNode, seen: _Seen) -> None:
        """Check that a restarted node is soon at the current round again."""
        current = self._network.run.clock.round_at(self._network.world.final)
        if seen.started is None or member.round < max(0, current):
            return
        took = (self._now - seen.started) / self._round_seconds
        alone = not self._hit(self._world + self._of(member).incidents, seen.started, self._now)
        if alone and not member.hostile:
            self._recoveries.append(took)
            if took > RECOVERY_ROUNDS:
                self._broke(f"{member.name} needed {took:.1f} rounds to come back, with nothing in its way")
        down = seen.down_since if seen.down_since is not None else seen.started
        seen.incidents.append(Incident("down", member, down, self._now))
        seen.started = seen.down_since = None

    def _block(self) -> None:
        network = self._network
        clock = network.run.clock
        for member in network.members.values():
            self._recover(member, self._of(member))
        self._oracle.look(network.world)
        if network.world.head >= clock.start(self.round + 1):
            self._over(self.round)
            self.round += 1
            self.on_round(self.round)
            if self.round >= self.rounds:
                network.clock.stop()

    def _over(self, number: int) -> None:
        """Check a round that is over for all nodes."""
        network = self._network
        self._forget()
        self._ask(number - ORACLE_ROUNDS)
        self._in_time(number)
        newest = max((self._published(m) for m in network.members.values() if m.validates and not m.hostile), default=0)
        age = number + 1 - newest
        self.result.oldest_needed_checkpoint_rounds = max(self.result.oldest_needed_checkpoint_rounds, age)
        if kept_from(network.spec.checkpoint_rounds, number, newest) > newest:
            self._broke(f"round {number}: the newest checkpoint is {age} rounds old, payloads after it are gone")
        calm = all(self.calm(round) for round in range(number - CALM_ROUNDS + 1, number + 1))
        if calm and number >= CALM_ROUNDS and not (self.calm(number + 1) and number + 1 < self.rounds):
            self._after_calm(number)

    def _in_time(self, number: int) -> None:
        """Check that every honest miner has committed that nothing hit since the round's work could begin. What hits
        others is no excuse."""
        network, committed = self._network, self._committed.pop(number, set())
        clock = network.run.clock
        if number == 0:
            return
        begin, end = self._time(clock.commit_deadline(number - 1)), self._time(clock.commit_deadline(number))
        there = {hotkey(peer.id) for peer in network.world.state(clock.commit_deadline(number - 1)).peers}
        for name, member in network.members.items():
            if member.validates or member.hostile or member.gone or name in committed:
                continue
            seen, began = self._of(member), hotkey(member.peer) in there
            behind = not began or seen.apart or seen.caught_up > begin
            if not (behind or self._hit(self._world, begin, end) or self._hit_or_down(member, begin, end)):
                self.result.honest_late += 1
                self._broke(f"{name} did not commit in round {number}, and nothing had hit it")

    def _ask(self, number: int) -> None:
        """Check that the contributors that honest nodes applied for a round follow from the votes."""
        if number < 0:
            return
        applied = self._applied_by.pop(number, [])
        found = self._oracle.selected(self._network.world, number)
        expected = frozenset() if found is None else frozenset(hotkey(peer) for peer in found)
        for name, contributing in applied:
            if contributing != expected:
                self.result.disagreements += 1
                told = "nobody" if not expected else f"{len(expected)} others"
                self._broke(f"{name} has applied {len(contributing)} in round {number}; by the votes it is {told}")

    def _published(self, member: SimulatedNode) -> int:
        """Return the round of the newest checkpoint that the member publishes, 0 for none."""
        network = self._network
        document = network.store.buckets[member.name].get(keys.checkpoints(network.run.id))
        if document is None:
            return 0
        return parse_shown(document.data, network.run.id, member.peer, hash_verify).newest

    def _after_calm(self, number: int) -> None:
        """Check that some calm rounds after any faults every node is back and the run continues."""
        for member in self._network.members.values():
            if not member.hostile and not member.gone and (member.round < number or self._of(member).apart):
                self.result.halted = True
                where = f"round {member.round}" + " with a theta of its own" * self._of(member).apart
                self._broke(f"{member.name} stands at {where} at the end of the calm round {number}")
        self._pay_is_due(number)
        for round in range(number - CALM_ROUNDS + 1 + RETURN_ROUNDS, number + 1):
            if round in self._void:
                self.result.halted = True
                self._broke(f"round {round} is void in calm weather")

    def _pay_is_due(self, number: int) -> None:
        """Check that in a calm every honest validator sets weights as often as the run requires."""
        network = self._network
        owed = number - network.spec.gauntlet.weight_rounds
        last = {peer.id: peer.last_update for peer in network.world.state(network.world.final).peers}
        for member in network.members.values():
            if member.validates and not member.hostile and network.run.clock.paid_in(last[member.peer]) < owed:
                self.result.unpaid += 1
                self._broke(f"{member.name} set no weights for rounds {owed} to {number - 1}, which were calm")

    # --- who was hit -------------------------------------------------------------------------------------------

    def _hit(self, incidents: list[Incident], begin: float, end: float) -> bool:
        return any(i.began <= end and i.ended + AFTERMATH_SECONDS >= begin for i in incidents)

    def _hit_or_down(self, member: SimulatedNode, begin: float, end: float) -> bool:
        seen = self._of(member)
        return seen.down_since is not None or seen.started is not None or self._hit(seen.incidents, begin, end)

    def _excused(self, member: SimulatedNode, begin: float, end: float) -> bool:
        return self._hit(self._of(member).incidents + self._world, begin, end)

    def _forget(self) -> None:
        """Drop incidents so old that no check needs them."""
        old = self._now - 6 * self._round_seconds
        self._revealed = {round: names for round, names in self._revealed.items() if round >= self.round - 6}
        self._world = [incident for incident in self._world if incident.ended > old]
        for seen in self._seen.values():
            seen.incidents = [incident for incident in seen.incidents if incident.ended > old]

    # --- small things ------------------------------------------------------------------------------------------

    @property
    def _network(self) -> Network:
        assert self.network is not None
        return self.network

    @property
    def _now(self) -> float:
        return self._network.clock.now

    @property
    def _round_seconds(self) -> float:
        return self._network.run.clock.round_blocks * BLOCK_SECONDS

    def _time(self, block: int) -> float:
        """Return about when a block was made, counted back from the head."""
        return self._now - max(0, self._network.world.head - block) * BLOCK_SECONDS

    def _of(self, member: SimulatedNode) -> _Seen:
        return self._seen.setdefault(member.name, _Seen())

    def _broke(self, what: str) -> None:
        self.result.broken.append(what)
        self._write("witness", "broken", -1, {"what": what})

    def _write(self, who: str, event: str, round: int, fields: dict[str, Any]) -> None:
        now = self.network.clock.now if self.network is not None else 0.0
        line = json.dumps({"time": now, "who": who, "event": event, "round": round, **fields}, default=str)
        self._history.update(line.encode())
        if self._trace is not None:
            self._trace.write(line + "\n")


def _is_read(row: dict[str, Any]) -> bool:
    """Whether a validator has read what this peer left, by its report."""
    judged = "contributing" in row or "standing" in row or "rejected" in row
    return judged and row.get("rejected") not in ("UNREVEALED", "MISSING")


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0
