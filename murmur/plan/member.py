"""Resources of a cluster's member, by arithmetic from the spec: a round's phases, memory, disk, bytes. No torch.

A round begins when the previous record and the payloads that it names are on this machine. All members finish their
inner steps at the same time: the worst case, since payloads that arrive one by one are fetched during the inner steps.
"""

from dataclasses import dataclass
from functools import cached_property

from murmur.cluster.decide import CHECKPOINT_ROUNDS_KEPT
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.plan.phases import Phase, TrainerSetting, Work, restart_phases
from murmur.plan.requirements import DAY_SECONDS, TrainerPlan
from murmur.plan.timeline import Timed, amount, phase_seconds, schedule
from murmur.protocol.cluster import ClusterSpec
from murmur.training.memory import trainer_disk
from murmur.training.sizes import MemberSizes

CLOSE_CALLS = 4
"""Requests to close a round: list and read claims, create or read its record, beats."""


@dataclass(frozen=True, slots=True)
class MemberSetting(TrainerSetting):
    """A member of a cluster of `members`, all of which contribute."""

    spec: ClusterSpec
    members: int = 1

    @property
    def sizes(self) -> MemberSizes:
        return MemberSizes(self.spec, self.members)


def member_phases(setting: MemberSetting) -> tuple[Phase, ...]:
    """Return the phases of murmur/cluster/member.py Member.take_part, beginning with the payloads of the previous
    record."""
    sizes, rules = setting.sizes, setting.spec.cluster
    download, meanwhile = setting.downloaded()
    summed = setting.spec.exchange == "int8"
    # One of all members uploads a checkpoint.
    turns = setting.spec.checkpoint_rounds * setting.members
    return (
        Phase("swap", setting.swap(), ()),
        Phase("open payloads", setting.opened(sizes.opened, 1, FETCH_THREADS)),
        *setting.applied(),
        Phase("save own state", setting.saved(sizes.own), ("theta digest",)),
        setting.snapshot(),
        Phase("checkpoint upload", (Work(sizes.model, "up"),), ("snapshot",), every=turns),
        Phase("fetch data", setting.fetched(), ("theta digest",)),
        Phase("inner steps", setting.trained()),
        Phase("compress", setting.compressed()),
        *setting.sent(),
        Phase("publish", setting.shown(), ("save sealed", "upload ahead")),
        Phase("claim", (Work(1, "call"),)),
        Phase("see claims", (Work(rules.beat_seconds / 2, "wait"),)),
        *(() if summed else (Phase("download", download, beside=meanwhile),)),
        Phase("close", (Work(CLOSE_CALLS, "call"), Work(rules.beat_seconds / 2, "wait")), ("see claims",)),
        *(_summed(setting) if summed else ()),
        Phase("follow", (), ("download", "close")),
    )


def _summed(setting: MemberSetting) -> tuple[Phase, ...]:
    """Return the phases from the record on in the int8 exchange (murmur/cluster/mean.py): each member sums one part."""
    sizes, rules = setting.sizes, setting.spec.cluster
    payload, part = sizes.payload, sizes.payload // setting.members
    others, threads = payload - part, setting.openers
    return (
        Phase("read parts", (Work(others, "down"),), ("close",), beside=(Work(payload, "hash", FETCH_THREADS),)),
        Phase("sum", (Work(payload, "cipher"), Work(payload, "apply", setting.threads))),
        Phase("seal part", (Work(part, "cipher"), Work(part, "hash"))),
        Phase("upload part", (Work(part, "up"), Work(2, "call"))),
        Phase("see parts", (Work(rules.beat_seconds / 2, "wait"), Work(1, "call"))),
        Phase("download", (Work(others, "down"),), beside=(Work(others, "write"), Work(others, "hash", threads))),
    )


@dataclass(frozen=True)
class ClusterPlan(TrainerPlan):
    """Requirements of one of `members`; all have its machine and links."""

    spec: ClusterSpec
    members: int = 1

    @property
    def setting(self) -> MemberSetting:
        return MemberSetting(self.spec, self.gpus, self.rates.threads, self.on_gpu, self.has_data, self.members)

    @property
    def upload_bytes(self) -> int:
        """Bytes of the payload; in the int8 exchange, also of the member's part of the mean."""
        part = self.payload_bytes // self.members if self.spec.exchange == "int8" else 0
        return self.payload_bytes + part

    @property
    def upload_seconds(self) -> float:
        return self.rates.up.seconds(self.upload_bytes, 1)

    @property
    def download_bytes(self) -> int:
        """Bytes of the other members' payloads; in the int8 exchange, of one part of each, and of the others' sums."""
        if self.spec.exchange == "int8":
            return 2 * (self.payload_bytes - self.payload_bytes // self.members)
        return (self.members - 1) * self.payload_bytes

    # --- time ----------------------------------------------------------------------------------------------------

    @cached_property
    def timeline(self) -> tuple[Timed, ...]:
        """The phases of a round, in the order of the code."""
        return schedule(member_phases(self.setting), self.rates, {}, ["follow"], 0.0)

    @property
    def round_seconds(self) -> float:
        return self.timeline[-1].ends

    @property
    def utilization(self) -> float:
        """Share of a round that is spent in inner steps."""
        return self.compute_seconds / self.round_seconds

    @property
    def restart(self) -> tuple[tuple[str, float], ...]:
        """Names and seconds of the phases of a start, before the first round."""
        return tuple((phase.name, phase_seconds(phase, self.rates)) for phase in restart_phases(self.setting, "miner"))

    @property
    def checkpoint_share(self) -> float:
        """Share of the uplink of the member that uploads the checkpoint, over an interval of checkpoints: the
        checkpoint and the member's payloads."""
        interval = self.spec.checkpoint_rounds * self.round_seconds
        sent = self.setting.sizes.model + self.spec.checkpoint_rounds * self.payload_bytes
        return self.rates.up.seconds(sent, 1) / interval

    @property
    def longest_still(self) -> tuple[str, float]:
        """The longest time that a member's beats show it at one step of one phase: the name and the seconds."""
        named = {timed.phase.name: timed.seconds for timed in self.timeline}
        sending = ("compress", "seal", "upload ahead", "save sealed", "publish")
        found = {
            "one inner step": self.compute_seconds / self.spec.inner.steps,
            "sending a payload": sum(named[name] for name in sending),
        }
        return max(found.items(), key=lambda one: one[1])

    # --- bucket --------------------------------------------------------------------------------------------------

    @property
    def bucket_bytes_a_round(self) -> int:
        """Bytes that all members together read from the bucket in a round: its egress."""
        return self.members * self.download_bytes

    @property
    def bucket_bytes_a_day(self) -> float:
        return self.bucket_bytes_a_round * DAY_SECONDS / self.round_seconds

    @property
    def bucket_bytes(self) -> int:
        """Most bytes in the bucket, without the data set: the payloads and means kept, and the newest
        checkpoints with the one that is being uploaded."""
        kept, means = self.spec.cluster.keep_rounds + 1, int(self.spec.exchange == "int8")
        models = CHECKPOINT_ROUNDS_KEPT + 1
        return kept * (self.members + means) * self.payload_bytes + models * self.setting.sizes.model

    # --- disk ----------------------------------------------------------------------------------------------------

    @property
    def disk(self) -> dict[str, int]:
        """Most bytes of a member's state on disk by part, without the data set."""
        return trainer_disk(self.setting.sizes)

    @property
    def disk_bytes_per_day(self) -> float:
        """Bytes that a member writes in a day, without the data set."""
        data = 0.0 if self.has_data else self.setting.sizes.trained_shards * self.setting.sizes.shard
        return (amount(member_phases(self.setting), "write") - data) * DAY_SECONDS / self.round_seconds
