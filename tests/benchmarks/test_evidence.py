"""The evidence: a run is what its settings say, and a file of rows goes on where it stopped."""

from pathlib import Path

import pytest
import torch

from benchmarks.evidence import exchange, rows
from benchmarks.evidence.exchange import errors_of, pseudo_gradient, through_int8
from benchmarks.evidence.runs import Run, Texts, key_of, paced, train
from benchmarks.evidence.settings import SIZES, Setting, payload_bytes
from murmur.data.shards import Shards
from murmur.protocol.spec import ModelSpec
from murmur.training.inner import inner_round
from murmur.training.model import Transformer
from murmur.training.optimizer import make_optimizer
from sparseloco.update import Update
from tests.small_run import data_set

SIZES["test"] = ModelSpec(vocabulary=264, layers=1, width=16, heads=2, kv_heads=1, ffn=32, context=32)
SMALL = Setting("sparseloco", size="test", peers=2, sequences=2, inner_steps=2, steps=8, evaluated=8, points=2)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("data")
    data_set(folder)
    shards = Shards.open(folder)
    return Texts(shards.train, {"validation": shards, "held_out": shards}, shards.digest.hex()[:16])


def losses(setting: Setting, texts: Texts) -> list[float]:
    return [point["loss"] for point in train(setting, texts)[0]]


# --- settings ------------------------------------------------------------------------------------------------


def test_a_run_has_another_name_for_every_setting() -> None:
    changed = {
        "method": "diloco", "size": "0.1M", "seed": 1, "peers": 4, "sequences": 4, "inner_steps": 4, "steps": 16,
        "k": 16, "decay": 0.5, "optimizer": "muon", "peak_lr": 0.1, "outer_lr": 0.5, "momentum": 0.5,
        "feedback": False, "quantise": False, "rule": "krum", "leave": 0.5, "pace": 0.5, "void": 2,
        "part": "validation", "evaluated": 4, "points": 1, "corpus": "another", "state": "kept",
    }  # fmt: skip
    together = [{"colluders": 1}, {"colluders": 1, "attack": "flipped"}, {"guess": "own", "delay": 0.5},
                {"guess": "own", "delay": 1.0}, {"guess": "lacking", "delay": 0.5}]  # fmt: skip
    found = [SMALL, *(SMALL.but(**{name: value}) for name, value in changed.items())]
    found += [SMALL.but(**change) for change in together]
    assert len({setting.id for setting in found}) == len(found)
    assert set(changed) | {"colluders", "attack", "guess", "delay"} == set(Setting.__dataclass_fields__)
    assert SMALL.but().id == SMALL.id


def test_the_name_follows_the_models_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SMALL.but().id
    monkeypatch.setitem(SIZES, "test", SIZES["test"].model_copy(update={"layers": 2}))
    assert SMALL.but(seed=0).id != before


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ddp", "leave": 0.1}, {"method": "diloco", "feedback": False}, {"guess": "own"}, {"steps": 7},
        {"colluders": 2}, {"method": "diloco", "void": 2}, {"rule": "krum", "quantise": False}, {"size": "huge"},
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        SMALL.but(**change)


# --- rows ----------------------------------------------------------------------------------------------------


def test_a_half_written_line_is_cut_off_and_its_run_made_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with rows.writing(path) as writer:
        writer.append({"id": "a", "seconds": 1})
        writer.append({"id": "b", "seconds": 2})
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert [row["id"] for row in rows.read([path])] == ["a", "b"][:kept]
        with rows.writing(path) as writer:
            writer.append({"id": "c"})
        assert [row["id"] for row in rows.read([path])] == [*["a", "b"][:kept], "c"]


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    with rows.writing(tmp_path / "rows"), pytest.raises(BlockingIOError), rows.writing(tmp_path / "rows"):
        pass


# --- runs ----------------------------------------------------------------------------------------------------


def test_the_same_run_gives_the_same_points(texts: Texts) -> None:
    assert train(SMALL, texts)[0] == train(SMALL, texts)[0]


def test_ddp_with_one_peer_is_plain_training_bit_for_bit(texts: Texts) -> None:
    setting = SMALL.but(method="ddp", peers=1)
    run = Run(setting, texts)
    model = Transformer(setting.model)
    model.load_state_dict({name: value.clone() for name, value in run.judge.theta.items()})
    batches = [
        batch
        for number in range(setting.rounds)
        for batch in run.pages(number, key_of(setting, 0, 0), setting.inner_steps).split(setting.sequences)
    ]
    inner_round(model, make_optimizer(model, run.spec.inner), batches, run.spec.inner, first_step=0)
    for number in range(setting.rounds):
        run.round(number)
    assert all(torch.equal(value, run.judge.theta[name]) for name, value in model.named_parameters())


def test_ddp_of_two_peers_steps_by_the_mean_of_their_gradients(texts: Texts) -> None:
    setting = SMALL.but(method="ddp", inner_steps=1, steps=1, points=1)
    run = Run(setting, texts)
    work = [run.pages(0, key_of(setting, place, 0), 1) for place in range(2)]
    model = Transformer(setting.model)
    model.load_state_dict({name: value.clone() for name, value in run.judge.theta.items()})
    for part in work:
        (model.loss(part).mean() / 2).backward()
    inner = run.spec.inner
    torch.nn.utils.clip_grad_norm_(model.parameters(), inner.clip)
    optimizer = make_optimizer(model, inner)
    for group in optimizer.param_groups:
        group["lr"] = inner.final_lr if inner.decay_steps <= 0 else inner.peak_lr
    optimizer.step()
    run.round(0)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), run.judge.theta[name], atol=1e-4, rtol=1e-3)


def test_diloco_with_one_peer_one_step_and_no_momentum_takes_the_inner_result(texts: Texts) -> None:
    setting = SMALL.but(method="diloco", peers=1, inner_steps=1, steps=1, points=1, outer_lr=1.0, momentum=0.0)
    run = Run(setting, texts)
    before = {name: value.clone() for name, value in run.judge.theta.items()}
    run.round(0)
    plain = Run(setting.but(method="ddp"), texts)
    plain.round(0)
    for name, value in run.judge.theta.items():
        moved = before[name] - plain.judge.theta[name]
        assert torch.equal(value, before[name] - moved)


def test_nesterovs_outer_step_is_the_published_one(texts: Texts) -> None:
    """v <- m v + mean; theta <- theta - lr (mean + m v)."""
    setting = SMALL.but(method="diloco", outer_lr=0.7, momentum=0.9)
    run = Run(setting, texts)
    velocity = {name: torch.zeros_like(value) for name, value in run.judge.theta.items()}
    for number in range(3):
        theta = {name: value.clone() for name, value in run.judge.theta.items()}
        sent = []
        for peer in run.peers:
            peer.train(run.pages(number, peer.key, 2), setting, 2)
            sent.append(pseudo_gradient(peer.replica))
        saved = run.exchange.settle(run.judge, sent)
        for name, value in theta.items():
            mean = (sent[0][name] + sent[1][name]) / 2
            velocity[name] = 0.9 * velocity[name] + mean
            torch.testing.assert_close(run.judge.theta[name], value - 0.7 * (mean + 0.9 * velocity[name]))
        for peer in run.peers:
            peer.replica.load_consensus(saved)


def test_int8_is_within_half_a_step_of_every_chunk() -> None:
    values = torch.randn(3, 5000) * torch.logspace(-6, 3, 15000).view(3, 5000)
    found = through_int8(values)
    for mine, theirs in zip(values.flatten().split(4096), found.flatten().split(4096), strict=True):
        step = float(mine.abs().max()) / 127
        assert float((mine - theirs).abs().max()) <= step / 2 * 1.001
        assert len(theirs.unique()) <= 255
    assert torch.equal(through_int8(torch.zeros(7)), torch.zeros(7))


def test_without_error_feedback_the_error_stays_zero(texts: Texts) -> None:
    for feedback in (True, False):
        run = Run(SMALL.but(feedback=feedback), texts)
        for number in range(2):
            run.round(number)
        kept = sum(float(error.abs().sum()) for peer in run.peers for error in errors_of(peer.replica).values())
        assert (kept > 0) is feedback


def test_without_the_quantiser_what_is_sent_is_what_was_learned(texts: Texts) -> None:
    for quantise in (True, False):
        run = Run(SMALL.but(quantise=quantise), texts)
        peer = run.peers[0]
        peer.train(run.pages(0, peer.key, 2), SMALL, 2)
        learned = pseudo_gradient(peer.replica)
        sent = exchange.dense(run.exchange.send(0, peer.replica))
        same = [torch.equal(part[part != 0], learned[name][part != 0]) for name, part in sent.items()]
        assert all(same) is not quantise
        count = sum(int((part != 0).sum()) for part in sent.values())
        assert count <= sum(r.down * r.across * r.k for t in run.judge.layout for r in t.regions)


def test_without_the_bound_an_inflated_update_counts_whole(texts: Texts) -> None:
    moved = {}
    for rule in ("mean", "unbounded_mean"):
        run = Run(SMALL.but(rule=rule, peers=3), texts)
        for peer in run.peers:
            peer.train(run.pages(0, peer.key, 2), SMALL, 2)
        with torch.no_grad():
            weights = dict(run.peers[0].replica.model.named_parameters())
            for name, value in run.judge.theta.items():
                weights[name].copy_(value - 50 * (value - weights[name]))
        before = {name: value.clone() for name, value in run.judge.theta.items()}
        run.exchange.settle(run.judge, [run.exchange.send(peer.place, peer.replica) for peer in run.peers])
        moved[rule] = sum(float((value - before[n]).square().sum()) for n, value in run.judge.theta.items()) ** 0.5
    assert moved["unbounded_mean"] > 5 * moved["mean"]


def test_the_unbounded_mean_of_equal_norms_is_the_products_mean(texts: Texts) -> None:
    """One peer's norm is the median."""
    lone = SMALL.but(peers=1, points=4)
    assert losses(lone.but(rule="unbounded_mean"), texts)[:2] == losses(lone, texts)[:2]


def test_a_lone_peer_that_guesses_from_its_own_update_guesses_right(texts: Texts) -> None:
    lone = SMALL.but(peers=1, points=4)
    assert losses(lone.but(guess="own", delay=0.5), texts) == losses(lone, texts)


@pytest.mark.parametrize(
    "change",
    [
        {"guess": "lacking", "delay": 0.5}, {"guess": "own", "delay": 0.5}, {"void": 2}, {"leave": 0.9},
        {"pace": 0.5}, {"optimizer": "muon"}, {"decay": 0.0}, {"k": 256},
    ],
)  # fmt: skip
def test_each_option_changes_what_is_learned(texts: Texts, change: dict[str, object]) -> None:
    base = SMALL.but(peers=3, points=4)
    assert losses(base, texts)[-1] != losses(base.but(**change), texts)[-1]


def test_a_void_round_moves_nothing_and_loses_nothing(texts: Texts) -> None:
    found = losses(SMALL.but(void=2, points=4), texts)
    assert found[1] == found[2] or found[2] == found[3] or found[3] == found[4]
    assert found[1] != found[0]
    run = Run(SMALL.but(void=1), texts)
    run.round(0)
    errors = errors_of(run.peers[0].replica)
    assert sum(float(error.abs().sum()) for error in errors.values()) > 0


def test_paces_are_around_the_usual_one() -> None:
    setting = SMALL.but(peers=5, inner_steps=8, pace=0.5)
    assert [paced(setting, place) for place in range(5)] == [4, 6, 8, 10, 12]
    assert {paced(setting.but(pace=0.0), place) for place in range(5)} == {8}


def test_the_filtered_mean_bears_what_the_plain_mean_does_not(texts: Texts) -> None:
    """Three of ten turn the honest mean round at the honest norm."""
    along = {}
    attacked = SMALL.but(peers=10, colluders=3, attack="flipped", steps=2, points=1)
    for rule in ("filtered_mean", "unbounded_mean"):
        run = Run(attacked.but(rule=rule), texts)
        before = {key: value.clone() for key, value in run.judge.theta.items()}
        sent = []
        for peer in run.peers:
            peer.train(run.pages(0, peer.key, 2), attacked, 2)
            sent.append(run.exchange.send(peer.place, peer.replica))
        honest = exchange.combined(attacked.but(rule="unbounded_mean"), [exchange.dense(update) for update in sent])
        run.exchange.settle(run.judge, [*sent, *run._attack(0, sent)])
        along[rule] = sum(float(((before[k] - v) * honest[k]).sum()) for k, v in run.judge.theta.items())
    assert along["filtered_mean"] > 1.5 * along["unbounded_mean"]


def test_krum_takes_one_of_the_many_and_never_a_stray() -> None:
    generator = torch.Generator().manual_seed(0)
    near = [{"a": 1 + 0.1 * torch.randn(50, generator=generator)} for _ in range(7)]
    stray = [{"a": 10 * torch.randn(50, generator=generator)} for _ in range(3)]
    chosen = exchange.krum([*stray, *near], 3)
    assert chosen >= 3
    flat = torch.stack([update["a"] for update in [*stray, *near]])
    sums = [sorted(float((one - other).square().sum()) for other in flat)[1:6] for one in flat]
    assert chosen == min(range(10), key=lambda place: sum(sums[place]))


def test_the_trimmed_mean_is_that_of_the_middle_of_every_coordinate() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, 5, generator=generator) for _ in range(10)]
    found = exchange.trimmed_mean(parts)
    for row in range(3):
        for column in range(5):
            middle = sorted(float(part[row, column]) for part in parts)[2:8]
            assert float(found[row, column]) == pytest.approx(sum(middle) / 6, abs=1e-6)


def test_bytes_are_those_of_the_payload(texts: Texts) -> None:
    run = Run(SMALL, texts)
    peer = run.peers[0]
    peer.train(run.pages(0, peer.key, 2), SMALL, 2)
    sent = run.exchange.send(0, peer.replica)
    assert isinstance(sent, Update)
    overhead = payload_bytes(SMALL) - len(sent.records)
    assert 0 < overhead < 400
    params = SMALL.num_parameters
    assert payload_bytes(SMALL.but(method="diloco")) == 4 * params
    assert params < payload_bytes(SMALL.but(method="diloco-int8")) < 1.2 * params
    assert payload_bytes(SMALL.but(method="ddp")) == 4 * params * SMALL.inner_steps
    assert train(SMALL, texts)[0][-1]["sent"] == 4 * payload_bytes(SMALL)


def test_all_methods_see_equally_many_tokens(texts: Texts) -> None:
    found = {train(SMALL.but(method=m), texts)[0][-1]["tokens"] for m in ("ddp", "diloco", "diloco-int8", "sparseloco")}
    assert found == {2 * 2 * 8 * 32}
