"""What follows for one node: published figures, a round's shares, what fits and what is refused."""

from dataclasses import replace

import pytest

from murmur.plan import presets
from murmur.plan.phases import opening
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import COVENANT, Plan, link, transfer_seconds, utilization
from murmur.protocol.spec import RunSpec
from murmur.training.memory import memory_total


def planned(name: str, gpus: int = 8, memory: float = 180e9) -> Plan:
    return Plan(presets.read(name).first, gpus, int(memory), Rates(up=link(110.0), down=link(500.0)))


def test_published_throughput_follows_from_the_flops() -> None:
    """INTELLECT-1 reports 36.2 to 41.4 % of an H100's peak, and 38 minutes a round on eight of them."""
    assert 0.362 < planned("intellect-10b").flops / (38 * 60 * 8 * 989e12) < 0.414


def test_covenants_round_takes_the_published_20_minutes() -> None:
    assert planned("covenant-72b").compute_seconds == pytest.approx(20 * 60, rel=0.005)


# --- time --------------------------------------------------------------------------------------------------------


def test_muons_products_count_as_compute_and_a_miner_commits_by_so_much_later() -> None:
    table = presets.read("covenant-72b").first.model_dump()
    table["inner"]["optimizer"] = "muon"
    adamw, muon = (Plan(spec, 8, 180 * 10**9) for spec in (presets.read("covenant-72b").first, RunSpec(**table)))
    assert adamw.optimizer_flops == 0
    square = 6 * 8192**3  # query and output
    flat = 4 * 1024**2 * 8192 + 2 * 1024**3  # key and value
    wide = 4 * 8192**2 * 28_672 + 2 * 8192**3  # gate, up and down
    embedding = 4 * 8192**2 * 262_144 + 2 * 8192**3
    a_step = 5 * (80 * (2 * square + 2 * flat + 3 * wide) + embedding)
    assert muon.optimizer_flops == pytest.approx(30 * a_step, rel=0.05)
    assert muon.compute_seconds / adamw.compute_seconds == pytest.approx(1 + muon.optimizer_flops / muon.flops)
    trained = []
    for plan in (adamw, muon):
        found = {timed.phase.name: timed for timed in plan.timeline("miner")}
        trained.append(found["compress"].begins - found["inner steps"].begins)
    assert trained[1] - trained[0] == pytest.approx(1.02 * (muon.compute_seconds - adamw.compute_seconds))
    assert (adamw.gpus_needed, muon.gpus_needed) == (8, 6)


@pytest.mark.parametrize(
    ("compute", "communication", "published"),
    [
        (20 * 60, 70, 94.5),  # Covenant-72B
        (4.5 * 60, 12, 95.7),  # SparseLoCo, 8B
        (38 * 60, 103, 95.7),  # INTELLECT-1, within the USA
        (38 * 60, 382, 85.6),  # with Europe
        (38 * 60, 469, 82.9),  # the whole world; published as 83
    ],
)
def test_utilization_gives_the_published_rows(compute: float, communication: float, published: float) -> None:
    assert 100 * utilization(compute, communication) == pytest.approx(published, abs=0.05)


def test_covenants_published_bytes_need_minutes_at_the_speeds_it_claims() -> None:
    up = transfer_seconds(COVENANT.payload_bytes, COVENANT.up_mbps)
    down = transfer_seconds(20 * COVENANT.payload_bytes, COVENANT.down_mbps)
    assert COVENANT.payload_bytes == pytest.approx(1.99e9, rel=1e-3)
    assert (round(up), round(down)) == (145, 637)
    assert utilization(1200, 70) > 0.94 > 0.61 > utilization(1200, up + down)


def test_transfers_are_the_bytes_of_one_payload_up_and_of_every_contributor_down() -> None:
    plan = planned("8b")
    assert plan.upload_seconds == pytest.approx(plan.spec.object_bytes * 8 / 110e6)
    assert plan.download_seconds == pytest.approx(20 * plan.spec.object_bytes * 8 / 500e6)
    assert plan.published_utilization == utilization(plan.compute_seconds, plan.upload_seconds + plan.download_seconds)


def test_links_that_are_not_given_are_those_of_the_spec() -> None:
    plan = Plan(presets.read("covenant-72b").first, 8, 180 * 10**9)
    assert plan.upload_seconds == pytest.approx(plan.payload_bytes * 8 / 880e6)
    assert plan.download_seconds == pytest.approx(plan.download_bytes * 8 / 4000e6)


def test_utilization_is_of_the_whole_round_and_of_more_when_a_miner_is_late() -> None:
    in_time, late = planned("1b"), planned("covenant-72b")
    assert in_time.utilization == in_time.compute_seconds / (73 * 12)
    ends = [timed.ends for timed in late.timeline("miner") if timed.phase.name in ("commit", "publish")]
    assert max(ends) > late.round_seconds
    assert late.utilization == late.compute_seconds / max(ends)


def test_at_72b_no_gpu_waits_for_a_decision_and_one_at_x_only_makes_nobody_late() -> None:
    """What is sent waits for the decision; what is trained does not (docs/plan.md)."""
    plan = Plan(presets.read("covenant-72b").first, 8, 192 * 10**9, Rates(up=link(880.0), down=link(4000.0)))
    timeline = {timed.phase.name: timed for timed in plan.timeline("miner")}
    late = opening(plan.spec.clock, "words")
    assert timeline["inner steps"].begins < plan.openings["decided"] < late < timeline["inner steps"].ends
    assert plan.missed == ()
    assert not [name for name in ("select", "theta digest", "snapshot", "save own state") if timeline[name].critical]
    assert timeline["margin"].seconds == pytest.approx(0.02 * plan.compute_seconds)


def test_a_round_has_room_for_one_wrong_guess_and_its_correction() -> None:
    """What is lacking comes beside the inner steps; the outer step is made anew between two of them."""
    plan = Plan(presets.read("covenant-72b-110").first, 8, 192 * 10**9, Rates(up=link(110.0), down=link(500.0)))
    timeline = {timed.phase.name: timed for timed in plan.timeline("miner")}
    assert plan.correction_seconds == pytest.approx(sum(dict(plan.correction).values()))
    assert timeline["wrong guess"].seconds == pytest.approx(plan.correction_seconds)
    assert timeline["compress"].begins == pytest.approx(timeline["wrong guess"].ends)
    assert "download" not in dict(plan.correction)
    assert plan.published_after_correction <= plan.round_seconds


def test_a_guess_is_made_a_block_after_the_commit_deadline_is_final_and_by_then_all_has_come() -> None:
    for name, up, down in (("covenant-72b", 880.0, 4000.0), ("covenant-72b-110", 110.0, 500.0)):
        plan = Plan(presets.read(name).first, 8, 192 * 10**9, Rates(up=link(up), down=link(down)))
        timeline = {timed.phase.name: timed for timed in plan.timeline("miner")}
        assert plan.openings["guess"] == (3 + 1) * 12
        assert timeline["open payloads"].begins == 48
        assert timeline["download"].ends <= 48


def test_a_small_model_meets_every_deadline() -> None:
    assert [planned(name).missed for name in ("tiny", "parts", "150m", "1b", "8b")] == [()] * 5


def test_own_state_that_a_disk_does_not_take_in_a_round_is_told() -> None:
    plan = planned("8b")
    slow = replace(plan, rates=replace(plan.rates, write=Rate(1e8, 1e8)))
    assert (plan.loses_own_state, slow.loses_own_state) == (False, True)


def test_a_slow_uplink_is_told_by_what_it_holds_up() -> None:
    plan = planned("1b")
    slow = replace(plan, rates=replace(plan.rates, up=link(0.2)))
    assert {found.deadline.role for found in slow.missed} == {"miner"}
    late = {found.deadline.phase: found for found in slow.missed}
    assert {timed.phase.name for timed in late["publish"].path[:2]} == {"publish", "upload ahead"}
    assert slow.uplink_share > 1 > plan.uplink_share


def test_a_validator_that_checks_too_slowly_is_told_that_its_vote_comes_after_x() -> None:
    plan = planned("8b")
    slow = replace(plan, rates=replace(plan.rates, cipher=Rate(6e6, 6e6)))
    late = {found.deadline.phase: found for found in slow.missed}
    assert late["vote"].path[0].phase.name == "check"
    assert late["vote"].by == (71 - 58) * 12
    assert plan.missed == ()


def test_no_copy_stands_between_a_validator_and_its_vote() -> None:
    """Copies take longer than it is from the reveal deadline to the vote deadline here, and hold up nothing; they are
    shared by those that count."""
    plan = Plan(presets.read("covenant-72b-110").first, 8, 192 * 10**9)
    clock = plan.spec.clock
    for validators, copied in ((1, 20), (2, 20), (3, 20 * 2 / 3), (20, 2)):
        shared = replace(plan, validators=validators)
        found = {timed.phase.name: timed for timed in shared.timeline("validator")}
        assert found["copies"].seconds == pytest.approx(copied * plan.payload_bytes * (1 / 1.1e9 + 8 / 110e6))
        assert not found["copies"].critical
        assert found["vote"].ends == plan.openings["decided"] - 3 * 12
        assert shared.missed == ()
    lone = replace(plan, validators=1)
    assert (lone.uplink_share > 1) is True
    window = (clock.words - clock.reveal) * clock.block_seconds
    assert next(timed for timed in plan.timeline("validator") if timed.phase.name == "copies").seconds > window


def test_what_a_disk_writes_in_a_day_is_every_rounds_state_and_payloads() -> None:
    plan = planned("8b")
    model, payload = 4 * plan.parameters, plan.payload_bytes
    shard = plan.sizes.trained_shards * plan.sizes.shard
    a_round = (1 / 8 + 1) * model + (1 + 19) * payload + shard
    assert plan.disk_bytes_per_day("miner") == pytest.approx(a_round * 86_400 / (72 * 12))


def test_a_cpu_holds_what_gpus_would() -> None:
    on_gpu = Plan(presets.read("intellect-10b").first, 1, 10**9)
    on_cpu = replace(on_gpu, on_gpu=False, rates=replace(on_gpu.rates, compute=Rate(1e11)))
    assert on_cpu.compute_seconds == on_cpu.flops / 1e11
    beyond = on_cpu.host("miner")["swap"] - on_gpu.host("miner")["swap"]
    assert beyond == 3 * 4 * on_gpu.parameters  # parameters and two moments


# --- GPUs --------------------------------------------------------------------------------------------------------


def test_eight_b200_hold_covenant_and_the_fewest_gpus_are_the_fewest() -> None:
    assert planned("covenant-72b").micro_sequences >= 1
    assert planned("covenant-72b", memory=80e9).micro_sequences == 0
    for name, memory in (("covenant-72b", 80e9), ("covenant-72b", 180e9), ("8b", 48e9)):
        needed = planned(name, memory=memory).gpus_needed
        assert needed is not None
        assert planned(name, needed, memory).micro_sequences > 0
        assert planned(name, needed - 1, memory).micro_sequences == 0
    assert planned("covenant-72b", memory=24e9).gpus_needed is None


def test_the_largest_micro_batch_is_the_largest() -> None:
    plan = planned("1b", 1, 40e9)
    most, usable = plan.micro_sequences, 0.95 * 40e9
    assert 1 <= most < plan.sequences_per_gpu == 192
    fits = [memory_total(plan.spec, 1, count).gpu_computing <= usable for count in (1, most, most + 1)]
    assert fits == [True, True, False]
