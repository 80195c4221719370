"""A cluster member: it looks at the bucket, decides what to do next, and does it.

Nobody is asked and nobody listens: all that members know of each other stands in their bucket
(murmur/cluster/ledger.py). What a member does next is a pure function of its round and of what the bucket shows
(murmur/cluster/decide.py); doing it is murmur/cluster/play.py. What is missing is a value, and mended next.
"""

from loguru import logger

from murmur.cluster.actions import Action, Do, Leave
from murmur.cluster.checkpoint_turns import MemberShelf
from murmur.cluster.decide import needs_look, next_action, round_progress
from murmur.cluster.ending import finish
from murmur.cluster.ledger import Ledger
from murmur.cluster.play import Play
from murmur.cluster.presence import LONGEST_LOOK_BEATS
from murmur.cluster.rejoin import begin
from murmur.cluster.repair import Repair
from murmur.cluster.state import StoreAway, after_look
from murmur.cluster.upkeep import Upkeep
from murmur.cluster.view import missing
from murmur.data.shards import Shards
from murmur.node.state.node_state import NodeState
from murmur.protocol.cluster import ClusterSpec, Standing
from murmur.protocol.errors import ConfigError, StorageError
from murmur.rounds.checkpoints import Checkpoints

PLACE_LOOKS = 3


class Member:
    """One member. `name`: for people."""

    def __init__(
        self, spec: ClusterSpec, name: str, state: NodeState, shards: Shards, ledger: Ledger, process: str = ""
    ) -> None:
        """process: as in Heartbeat."""
        self.name, self.state, self.ledger, self.time = name, state, ledger, ledger.time
        self.play = play = Play(spec, name, state, shards, ledger, process)
        self.view, self.heartbeat = play.view, play.heartbeat
        repair = Repair(lambda: play.spec, state, ledger, play.log)
        self.upkeep = Upkeep(state, ledger, self.view, repair, play.amendments)
        self.shelf = MemberShelf(state, ledger, self.view)
        self.checkpoints = Checkpoints(self.shelf)

    def run(self) -> None:
        """Play rounds until stopped."""
        self.play.back_off()
        self._require_place()
        self.heartbeat.start()
        self.view.start()
        try:
            while not self._begin():
                pass
            self.upkeep.start()
            while not self._end(action := self._next()):
                self._try(action)
        finally:
            self.upkeep.end()
            self.view.end()
            if not self.view.value.twin:  # the other one goes on
                self.heartbeat.leave()

    def _require_place(self) -> None:
        """Raise ConfigError if another process plays as this member: its beat, which is not of our last process,
        changes again and again. Before we write anything."""
        try:
            seen = [self.ledger.own_beat()]
            while len(seen) < PLACE_LOOKS and (last := seen[-1]) is not None and not last.leaving:
                if self.play.starts.is_last(last.process):
                    break
                seconds = LONGEST_LOOK_BEATS * self.view.rules.beat_seconds
                told = "another process was {name}: looking for {seconds:.0f} s whether it still runs"
                logger.info(told, name=self.name, seconds=seconds)
                self.time.sleep(seconds)
                seen.append(self.ledger.own_beat())
                if (now := seen[-1]) is None or now.process != last.process or now.count <= last.count:
                    break
            else:
                if len(seen) == PLACE_LOOKS:
                    raise self._taken()
        except StorageError as fault:
            logger.info("cannot see whether this member runs elsewhere: {fault}", fault=str(fault))
        self.play.starts.note(self.heartbeat.process)

    def _taken(self) -> ConfigError:
        return ConfigError(
            f"another machine takes part as this same member, {self.name}, and began before this one: two machines "
            "have the same --name, or its home was copied. Give this machine its own --name and a new --home. It then "
            "joins as a new member"
        )

    def _begin(self) -> bool:
        """Have a state. Return whether we have one."""
        try:
            begin(self.ledger, self.state)
        except StorageError as fault:
            self.play.interrupted(str(fault))
            self.play.outage.failed(fault)
            return False
        self.play.enter()
        return True

    def _next(self) -> Action:
        play = self.play
        view = self.view.refresh() if needs_look(play.round) else self.view.value
        if play.round.claimed or play.round.skips:
            enough = round_progress(view.claims, view.presence.can_claim()).enough
            longest = LONGEST_LOOK_BEATS * self.view.rules.beat_seconds
            play.round = after_look(play.round, view, enough=enough, longest=longest)
        return next_action(play.round, view, self.ledger.me, self.view.rules, play.pace)

    def _try(self, action: Action) -> None:
        """Do it. What it lacks is a value of our round from then on."""
        try:
            self.play.do(action, self.checkpoints)
        except StorageError as fault:
            lack, standing = missing(fault), self.play.round.standing
            if isinstance(lack, StoreAway):
                self.play.interrupted(str(fault))
            self.play.move(
                missing=lack,
                standing=Standing.JOINING if standing is Standing.APPLYING else standing,
                unsent=standing is Standing.SENDING,
            )

    def _end(self, action: Action) -> bool:
        """Whether this is our last action; do it. Raises ConfigError if another machine plays as us."""
        match action:
            case Do.FINISH:
                self.play.stand(Standing.DONE)
                self.shelf.ended_at = self.time.now()
                finish(self.state, self.ledger, self.view, self.checkpoints, self.play.outage, self.shelf.ended_at)
            case Leave(asked):
                self.play.drains.follow(asked, self.state.saved.round - 1)
            case Do.YIELD:
                raise self._taken()
            case _:
                return False
        return True
