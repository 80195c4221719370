"""A whole run of the arena: rounds of training, sealing, checking, selecting, scoring, paying and stepping.

`play` is a pure function of its scenario. What happens in a round reads top to bottom in `Game.round`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gauntlet.checks import Gathered
from gauntlet.repetition import NOTHING_ALIKE, Repetition
from murmur.lab.arena.agree import Votes, incentives, pooled
from murmur.lab.arena.attack import Attack
from murmur.lab.arena.players import Honest, Lesson, Past, Player, Sending, View
from murmur.lab.arena.policies import POLICIES, Policy, Round
from murmur.lab.arena.problem import Text, Trained, sequence_losses, train, zero_theta
from murmur.lab.arena.stage import OWNER, POINTER, Signer, make_spec, named, sync_proof
from murmur.protocol.assignment import Draw
from murmur.protocol.merkle import sections_root
from murmur.protocol.messages import Envelope, Reveal, parse_envelope
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Reason, Slot, Standing, Uid
from sparseloco import ops, trace
from sparseloco.digest import theta_digest
from sparseloco.outer import OuterState
from sparseloco.trace import Trace
from sparseloco.update import Update
from sparseloco.wire import encode
from storage.seal import Sealed, seal

STAKE = 10**12
"""Rao of every validator: none can decide alone, where there are more than two."""

TOGETHER = 32
"""Peers trained in one batch: it stays in the cache."""

KNOWN_ROUNDS = 3
"""Rounds that players look back."""


@dataclass(frozen=True)
class Scenario:
    """A run. `hotkeys`: of miners, in all. `attacks`: `share` of the hotkeys is divided among these, the rest is
    honest. `trouble`: share of rounds that an honest peer misses or is late in. `churn`: share of honest peers that
    leave after a round and are replaced by newcomers on the same uid."""

    seed: int
    rounds: int
    hotkeys: int
    policy: str = "ours"
    attacks: tuple[type[Attack], ...] = ()
    share: float = 1 / 3
    validators: int = 3
    trouble: float = 0.01
    churn: float = 0.005


@dataclass(frozen=True, slots=True)
class RoundLog:
    """What happened in a round. `players`: whose each hotkey is. `sent`: hotkeys that sent anything; `punctual`: those
    that did so in time and with their key.
    `standing`: as one honest validator sees it. `paid`: shares of the pooled weights. `work`: lessons of each player,
    in honest rounds. `loss`: held-out, nats a token, after the round."""

    players: Mapping[PeerId, str]
    sent: frozenset[PeerId]
    punctual: frozenset[PeerId]
    rejected: Mapping[PeerId, Reason]
    standing: Mapping[PeerId, Standing]
    contributing: frozenset[PeerId]
    evaluated: frozenset[PeerId]
    paid: Mapping[PeerId, float]
    work: Mapping[str, float]
    is_void: bool
    loss: float


@dataclass(frozen=True)
class Story:
    """A run that is over. `first_loss`: held-out loss of theta_0. `attackers`: player name -> kind of attack."""

    scenario: Scenario
    first_loss: float
    attackers: Mapping[str, str]
    rounds: tuple[RoundLog, ...]

    @property
    def progress(self) -> float:
        """Fall of the held-out loss over the run, nats a token."""
        return self.first_loss - self.rounds[-1].loss


def play(scenario: Scenario, tell: Callable[[int, float], None] = lambda rounds, loss: None) -> Story:
    """Play all rounds; `tell` hears how many are played, and the loss."""
    game = Game(scenario)
    logs = []
    for number in range(scenario.rounds):
        logs.append(game.round(number))
        tell(number + 1, logs[-1].loss)
    return Story(scenario, game.first_loss, game.attackers, tuple(logs))


class Game:
    """The state of a run between rounds."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.spec = make_spec(scenario.seed)
        self.run = Run(self.spec)
        self.text = Text(scenario.seed, self.spec.page_tokens)
        self.theta, self.outer = zero_theta(), OuterState.initial(self.spec.layout)
        self.first_loss = self._loss()
        self.digests: list[Digest] = []
        self.past: list[Past] = []
        self.seats, self.attackers = _seats(scenario)
        self.validators = [PeerId(named("validator", scenario.seed, index)) for index in range(scenario.validators)]
        self.judges: dict[PeerId, Policy] = {peer: POLICIES[scenario.policy]() for peer in self.validators}
        self.stakes = dict.fromkeys(self.validators, STAKE)
        self.votes = Votes(self.run, self.stakes)
        self.incentives: dict[PeerId, int] = {}
        """As of the last round, in which a hotkey was paid."""
        self.lie = next((a.validator for a in scenario.attacks if a.validator != "honest"), None)
        minority = max(1, (scenario.validators - 1) // 2)
        self.liars = self.validators[-minority:] if self.lie else []

    def round(self, number: int) -> RoundLog:
        """Play a round: change the state, say what happened."""
        digest = theta_digest(self.theta, self.spec.layout, self.outer)
        self.digests.append(digest)
        sealed_until_all = self.judges[self.validators[0]].sealed
        sendings, work = self._play(number, digest, is_sealed=sealed_until_all)
        uids = self._uids()  # after the players: a flood takes new hotkeys when the round begins
        gathered = self._gather(number, sendings, uids)
        rounds = {peer: self._round(number, gathered, uids, peer) for peer in self.validators}
        witness = self.validators[0]
        checked = self.judges[witness].check(rounds[witness])
        rankings = {peer: self.judges[peer].rank(rounds[peer], checked) for peer in self.validators}

        friends = [peer for player in self._players() if player.name in self.attackers for peer in player.hotkeys]
        names = {peer: [uids[chosen] for chosen in rankings[peer].order] for peer in self.validators}
        own = [uids[peer] for peer in friends if peer in checked.committed]
        if self.lie in ("lying", "withholding"):
            names |= dict.fromkeys(self.liars, own if self.lie == "lying" else [])
        miners = [replace(item.peer, incentive=self.incentives.get(item.peer.id, 0)) for item in gathered]
        decision = self.votes.decide(number, rounds[witness].commit_hash, digest, miners, names)
        selection = decision.selection
        contributing = frozenset(peer for peer, _ in selection.contributing) if selection else frozenset[PeerId]()

        evaluated: set[PeerId] = set()
        weights: dict[PeerId, dict[Uid, float]] = {}
        for peer in self.validators:
            evaluated |= self.judges[peer].learn(rounds[peer], checked, rankings[peer], contributing)
            weights[peer] = self.judges[peer].pay(rounds[peer], rankings[peer])
            self.judges[peer].verify(rounds[peer], checked, rankings[peer])
        for peer in self.liars:
            if self.lie == "slandering":
                self.judges[peer].found = _false(self.judges[peer].found, friends)
            else:
                weights[peer] = {uids[friend]: 1 / len(friends) for friend in friends}
        hotkeys = {uid: peer for peer, uid in uids.items()} | {Uid(-1): OWNER}
        shares = pooled(weights, self.stakes)
        paid = {hotkeys[uid]: share for uid, share in shares.items()}
        self.incentives = {hotkeys[uid]: value for uid, value in incentives(shares).items()}

        self._step(contributing, sendings, digest, evaluated)
        log = RoundLog(
            {peer: player.name for player in self._players() for peer in player.hotkeys},
            frozenset(sendings),
            frozenset(peer for peer, sending in sendings.items() if not sending.late and sending.reveals),
            {peer: rejection.reason for peer, rejection in checked.rejected.items()},
            rankings[witness].standing,
            contributing,
            frozenset(evaluated),
            paid,
            work,
            selection is None,
            self._loss(),
        )
        self._churn(number)
        return log

    def _uids(self) -> dict[PeerId, Uid]:
        return {
            peer: Uid(self.scenario.validators + seat + index)
            for seat, player in self.seats.items()
            for index, peer in enumerate(player.hotkeys)
        }

    def _play(self, number: int, digest: Digest, *, is_sealed: bool) -> tuple[dict[PeerId, Sending], dict[str, float]]:
        """What all hotkeys send, and each player's work."""
        view = View(
            number,
            self.spec,
            self.run.id,
            named("page", self.scenario.seed, number),
            self.text,
            self.theta,
            digest,
            self.past[-KNOWN_ROUNDS:],
            self.judges[self.validators[0]].book,
        )
        players = list(self._players())
        self.text.keep([page for player in players for peer in player.hotkeys for page in view.pages(peer)])
        lessons = {player.name: player.lessons(view) for player in players}
        results = iter(_trained([each for player in players for each in lessons[player.name]], self.spec.inner.peak_lr))
        trained = {player.name: [next(results) for _ in lessons[player.name]] for player in players}
        sendings: dict[PeerId, Sending] = {}
        for player in sorted(players, key=lambda player: player.waits):
            shown = view
            if player.waits and not is_sealed:
                known = {p: s.update for p, s in sendings.items() if s.update is not None and not s.late}
                shown = replace(view, open=known)
            sendings |= player.send(shown, trained[player.name])
        whole = self.spec.inner.steps * self.spec.inner.sequences
        work = {name: sum(each.cost for each in given) / whole for name, given in lessons.items()}
        return sendings, work

    def _gather(self, number: int, sendings: Mapping[PeerId, Sending], uids: Mapping[PeerId, Uid]) -> list[Gathered]:
        """What everybody leaves in buckets and on chain."""
        sealed: dict[PeerId, Sealed] = {}
        for peer, sending in sorted(sendings.items(), key=lambda item: (item[1].stolen is not None, item[0])):
            if sending.update is not None:
                key = named("key", self.scenario.seed, number, peer.hex())
                shown = trace.encode(sending.trace, self.spec.trace)
                plaintext = encode(sending.theta, sending.update, shown)
                sealed[peer] = seal(plaintext, key=key, run=self.run.id, round=number, signer=Signer(peer))
            elif sending.stolen in sealed:
                sealed[peer] = self._stolen(number, peer, sealed[sending.stolen])
        found = []
        for peer, uid in sorted(uids.items(), key=lambda item: item[1]):
            if peer not in sealed:
                found.append(Gathered(Peer(peer, uid, 0, False, slot=Slot(0, POINTER))))
                continue
            mine, sending = sealed[peer], sendings[peer]
            by = self.run.clock.commit_deadline(number)
            slot = Slot(by + 1 if sending.late else by, POINTER, Commitment(number, mine.digest))
            reveal = Reveal(self.run.id, number, peer, mine.key, sync_proof(sending.holds, peer))
            signed = replace(reveal, signature=Signer(peer).sign(reveal.signed_part))
            found.append(
                Gathered(
                    Peer(peer, uid, 0, False, slot=slot),
                    mine.object,
                    reveal=signed.encode() if sending.reveals else None,
                    late=sending.late,
                )
            )
        return found

    def _stolen(self, number: int, thief: PeerId, victims: Sealed) -> Sealed:
        """The victim's ciphertext under an envelope of the thief's."""
        key_hash = parse_envelope(victims.envelope).key_hash
        envelope = Envelope(self.run.id, number, thief, key_hash, sections_root(victims.ciphertext))
        signed = replace(envelope, signature=Signer(thief).sign(envelope.signed_part))
        return Sealed(signed.encode(), victims.ciphertext, victims.key)

    def _round(self, number: int, gathered: Sequence[Gathered], uids: Mapping[PeerId, Uid], validator: PeerId) -> Round:
        seed = self.scenario.seed
        return Round(
            number,
            self.spec,
            self.run.id,
            self.theta,
            self.digests,
            self.outer,
            self.text,
            named("page", seed, number),
            named("commit", seed, number),
            named("sample", seed, number),
            gathered,
            uids,
            validator,
        )

    def _step(
        self,
        contributing: frozenset[PeerId],
        sendings: Mapping[PeerId, Sending],
        digest: Digest,
        evaluated: set[PeerId],
    ) -> None:
        """Apply what was agreed; everybody learns what the round has shown."""
        before = self.theta
        revealed, traces = dict[PeerId, Update](), dict[PeerId, Trace]()
        for peer, sending in sorted(sendings.items()):
            if sending.update is not None and sending.reveals and not sending.late:
                revealed[peer], traces[peer] = sending.update, sending.trace
        if contributing:
            updates = [revealed.get(peer) for peer in sorted(contributing)]
            outer = self.spec.outer
            self.theta, self.outer, _ = ops.outer_step(
                self.theta, updates, self.outer, alpha=outer.alpha, aggregate=outer.aggregate
            )
        else:
            for player in self._players():
                player.void()
        norm = self.outer.whole or 1.0
        self.past.append(Past(before, digest, revealed, traces, contributing, frozenset(evaluated), norm))
        del self.past[:-KNOWN_ROUNDS]

    def _churn(self, number: int) -> None:
        """Some honest peers leave; a newcomer takes the uid."""
        draw = Draw("arena churn", self.run.id, number)
        for seat, player in self.seats.items():
            if isinstance(player, Honest) and player.name not in self.attackers and draw.unit() < self.scenario.churn:
                name = f"{player.name.split('.')[0]}.{number + 1}"
                self.seats[seat] = Honest(name, self.scenario.seed, trouble=self.scenario.trouble)

    def _players(self) -> Iterator[Player]:
        return iter(self.seats.values())

    def _loss(self) -> float:
        return float(sequence_losses(self.theta, self.text.held_out).mean())


def _seats(scenario: Scenario) -> tuple[dict[int, Player], dict[str, str]]:
    """Players by their first seat, and the attackers' kinds by name."""
    players: list[Player] = []
    attackers: dict[str, str] = {}
    share = next((attack.share for attack in scenario.attacks if attack.share is not None), scenario.share)
    left = int(scenario.hotkeys * share) if scenario.attacks else 0
    for place, attack in enumerate(scenario.attacks):
        theirs = left // (len(scenario.attacks) - place)
        slots = max(1, theirs) if attack.crowd else attack.slots
        for index in range(1 if attack.crowd else max(1, theirs // slots)):
            name = f"{attack.kind} {index}"
            players.append(attack(name, scenario.seed, slots))
            attackers[name] = attack.kind
            left -= slots
    honest = scenario.hotkeys - sum(len(player.hotkeys) for player in players)
    players += [Honest(f"honest {index}", scenario.seed, trouble=scenario.trouble) for index in range(honest)]
    seats: dict[int, Player] = {}
    for player in players:
        seats[sum(len(other.hotkeys) for other in seats.values())] = player
    return seats, attackers


def _false(found: Mapping[PeerId, Repetition], friends: Sequence[PeerId]) -> dict[PeerId, Repetition]:
    """Return a liar's verdicts: friends' steps are as shown, whatever they showed, and nobody else's are."""
    lies: dict[PeerId, Repetition] = {}
    for peer, one in found.items():
        distance = 0.0 if peer in friends else NOTHING_ALIKE
        lies[peer] = replace(one, moves=(distance,) * one.declared, gradients=(distance,) * one.declared)
    return lies


def _trained(lessons: Sequence[Lesson], rate: float) -> list[Trained]:
    """Results of all lessons, in order."""
    results: dict[int, Trained] = {}
    alike: dict[tuple[tuple[int, ...], float, str], list[int]] = {}
    for place, each in enumerate(lessons):
        alike.setdefault((each.batches, each.rate, each.frozen), []).append(place)
    for (batches, share, frozen), places in sorted(alike.items()):
        for first in range(0, len(places), TOGETHER):
            group = places[first : first + TOGETHER]
            sequences = torch.stack([lessons[place].sequences for place in group])
            found = train([lessons[place].start for place in group], sequences, batches, share * rate, frozen)
            results |= zip(group, found, strict=True)
    return [results[place] for place in range(len(lessons))]
