"""RunSpec: what it refuses and how it says so, its digest, and its amendments."""

import json
from hashlib import sha256
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.run import Amendment, Run, parse_amendment
from murmur.protocol.spec import ModelSpec, RunSpec, parse_spec, parse_text
from murmur.protocol.types import Digest
from tests.specs import to_toml, toy_spec, toy_table


def parsed(overrides: dict[str, Any]) -> RunSpec:
    return parse_text(to_toml(toy_table(overrides)), "toy.toml")


# --- reading -------------------------------------------------------------------------------------------------


def test_the_toy_run_is_valid_and_toml_gives_the_same_value_as_python(spec: RunSpec) -> None:
    assert parsed({}) == spec
    assert spec.owner_id.hex() == "d43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d"


REFUSALS: list[tuple[str, Any, str]] = [
    ("name", "Not A Name", "name: String should match pattern"),
    ("name", "", "name: String should match pattern"),
    ("version", 2, "version: Input should be 1"),
    ("chain", "zz" * 32, "chain: expected a sha256 digest as 64 lower-case hex digits"),
    ("chain", "AA" * 32, "chain: expected a sha256 digest as 64 lower-case hex digits"),
    ("genesis_checkpoint", "22" * 31, "genesis_checkpoint: expected a sha256 digest"),
    ("data.index", "", "data.index: expected a sha256 digest"),
    ("owner", "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQX", "owner: not an SS58 address of format 42"),
    ("owner", "legal winner thank year wave sausage worth", "owner: not an SS58 address"),
    ("netuid", -1, "netuid: Input should be greater than or equal to 0"),
    ("netuid", "1", "netuid: Input should be a valid integer"),
    ("local", 1, "local: Input should be a valid boolean"),
    ("min_protocol", 5, "min_protocol 5 is above max_protocol 4"),
    ("extra_field", 1, "extra_field: Extra inputs are not permitted"),
    ("model.extra_field", 1, "model.extra_field: Extra inputs are not permitted"),
    ("model.width", 30, "model: width must be a multiple of heads with an even quotient"),
    ("model.width", 12, "model: width must be a multiple of heads with an even quotient"),
    ("model.kv_heads", 3, "heads a multiple of kv_heads"),
    ("model.layers", 0, "model.layers: Input should be greater than 0"),
    ("model.layers", 10**9, "model.layers: Input should be less than or equal to 4096"),
    ("model.vocabulary", 10**400, "model.vocabulary: Input should be"),
    ("model.ffn", 8.5, "model.ffn: Input should be a valid integer"),
    ("model.tie_embeddings", "yes", "model.tie_embeddings: Input should be a valid boolean"),
    ("model.rope_theta", 10**400, "model.rope_theta: Input should be a valid number"),
    ("compression.k", 0, "compression.k: Input should be greater than or equal to 1"),
    ("compression.k", 4097, "compression.k: Input should be less than or equal to 4096"),
    ("compression.decay", 1.5, "compression.decay: Input should be less than or equal to 1"),
    ("inner.peak_lr", 0.0, "inner.peak_lr: Input should be greater than 0"),
    ("inner.peak_lr", float("nan"), "inner.peak_lr: Input should be"),
    ("inner.final_lr", float("inf"), "inner.final_lr: Input should be a finite number"),
    ("inner.steps", True, "inner.steps: Input should be a valid integer"),
    ("outer.aggregate", "median", "outer.aggregate: Input should be 'mean' or 'filtered_mean'"),
    ("outer.alpha", -1.0, "outer.alpha: Input should be greater than 0"),
    ("data.num_tokens", 257, "257 tokens make 1 pages, a peer needs 2 a round: use more data or smaller pages"),
    ("gauntlet.contributors", 257, "gauntlet.contributors: Input should be less than or equal to 256"),
    ("gauntlet.norm_factor", 1.0, "gauntlet.norm_factor: Input should be greater than 1"),
    ("clock.commit", 24, "needs 0 < commit < reveal < words < round_blocks, got commit 24"),
    ("clock.reveal", 20, "needs 0 < commit < reveal"),
    ("clock.words", 24, "reveal 24, words 24"),
    ("clock.words", 40, "words 40, round_blocks 40"),
    ("clock.leader_slots", 2, "clock.leader_slots: Extra inputs are not permitted"),
    ("clock.finality_blocks", 24, "not final before the next round's commit window closes"),
    ("clock.finality_blocks", 6, "words - reveal (got 12) at least 2 * finality_blocks + 2 = 14, which leaves 4 s"),
    ("clock.words", 25, "words - reveal (got 1) at least 2 * finality_blocks + 2 = 2, which leaves 1 s"),
    ("clock.reveal", 21, "needs reveal - commit >= 2 (got 1)"),
    ("clock.tempo", 201, "too short for the chain's quota: an epoch of 201 blocks carries 5 rounds of votes"),
    ("clock.tempo", 201, "so at least 41 blocks are needed"),
    ("clock.weights_rate_limit", 41, "once in weights_rate_limit = 41 blocks, but gauntlet.weight_rounds 1 of"),
    ("clock.weights_rate_limit", 81, "round_blocks 40 are 40: set gauntlet.weight_rounds to at least 3"),
    ("clock.upload_mbps", 1e-4, "at 0.0001 Mb/s, but the commit window is 10 s"),
    ("clock.download_mbps", 1e-3, "a validator reads 5 payloads in"),
]


@pytest.mark.parametrize(("field", "value", "message"), REFUSALS, ids=lambda part: str(part)[:40])
def test_a_bad_field_is_refused_with_its_name_and_the_reason(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parsed({field: value})
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("toy.toml is not a valid run spec:\n  ")
    assert all(line.startswith("  ") for line in str(refusal.value).splitlines()[1:])


STRINGS = ["name", "chain", "owner", "genesis_checkpoint", "data.index", "outer.aggregate", "netuid", "model.width"]


@pytest.mark.parametrize("field", [*STRINGS, "local", "clock.commit", "inner.peak_lr", "gauntlet.burn_share"])
def test_a_refusal_never_repeats_the_text_that_was_given(field: str) -> None:
    secret = "Legal winner thank year wave sausage"
    with pytest.raises(ConfigError) as refusal:
        parsed({field: secret})
    assert "sausage" not in str(refusal.value)
    assert field in str(refusal.value)


@pytest.mark.parametrize("field", ["name", "chain", "netuid", "owner", "genesis_checkpoint", "model", "clock"])
def test_a_missing_field_is_named(field: str) -> None:
    table = toy_table()
    del table[field]
    with pytest.raises(ConfigError, match=rf"\n  {field}: Field required"):
        parse_text(to_toml(table), "toy.toml")


def test_a_strangers_field_name_cannot_write_lines_of_its_own_into_our_log(run: Run) -> None:
    table = json.loads(Amendment(previous=run.head.hex(), from_round=1).to_bytes()) | {"x\n12:00:00 INFO \x1b[2Jall": 1}
    data = json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    with pytest.raises(InvalidMessage) as caught:
        parse_amendment(data, Digest(sha256(data).digest()))
    assert str(caught.value).isprintable()


def test_every_fault_has_its_own_line() -> None:
    with pytest.raises(ConfigError) as refusal:
        parsed({"netuid": -1, "chain": "", "model.layers": 0})
    assert [line.split(":")[0].strip() for line in str(refusal.value).splitlines()[1:]] == [
        "model.layers",
        "chain",
        "netuid",
    ]


@pytest.mark.parametrize("text", ["name = ", "[model", "a = 1\na = 2", "\x00", "name = 'x"])
def test_text_that_is_not_toml_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^toy\.toml is not valid TOML: "):
        parse_text(text, "toy.toml")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_of_json_is_the_same_spec(indent: int | None) -> None:
    text = json.dumps(toy_spec().model_dump(mode="json"), indent=indent)
    assert parse_text("\n" + text, "toy.json").digest == toy_spec().digest


@pytest.mark.parametrize("text", ["{", '{"name": }', "{}[]"])
def test_text_that_is_neither_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^toy\.json is not valid JSON: "):
        parse_text(text, "toy.json")


def test_a_spec_cannot_be_changed(spec: RunSpec) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec.netuid = 2


# --- digest --------------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_fields_nor_on_comments(random: Any) -> None:
    table = {
        name: dict(random.sample(list(value.items()), len(value))) if isinstance(value, dict) else value
        for name, value in random.sample(list(toy_table().items()), len(toy_table()))
    }
    lines = to_toml(table).splitlines()
    commented = "".join(f"{line}  # {random.randrange(100)}\n\n" for line in lines)
    assert parse_text(commented, "toy.toml").digest == toy_spec().digest


def test_the_digest_does_not_depend_on_whether_a_default_is_written_out(spec: RunSpec) -> None:
    assert parsed({"compression.k": 64, "outer.alpha": 1, "version": 1, "gauntlet.burn_share": 0}).digest == spec.digest


def test_the_digest_is_the_sha256_of_sorted_json_without_spaces(spec: RunSpec) -> None:
    table = json.loads(spec.to_bytes())
    assert spec.to_bytes() == json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    assert spec.digest == sha256(spec.to_bytes()).digest()
    assert RunSpec.model_validate(table) == spec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("netuid", 2),
        ("owner", "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty"),
        ("inner.peak_lr", 0.0030000000000000005),
    ],
)
def test_every_change_of_a_value_changes_the_digest(field: str, value: Any, spec: RunSpec) -> None:
    assert toy_spec({field: value}).digest != spec.digest


def test_published_bytes_give_the_spec_back(spec: RunSpec) -> None:
    assert parse_spec(spec.to_bytes(), spec.digest) == spec


def test_published_bytes_under_another_digest_are_refused(spec: RunSpec) -> None:
    with pytest.raises(InvalidMessage, match="do not hash to the digest on chain"):
        parse_spec(spec.to_bytes() + b" ", spec.digest)


def test_published_bytes_that_are_not_canonical_are_refused(spec: RunSpec) -> None:
    loose = json.dumps(json.loads(spec.to_bytes())).encode()
    with pytest.raises(InvalidMessage, match="canonical"):
        parse_spec(loose, sha256(loose).digest())


def test_published_bytes_that_would_be_another_run_here_are_refused(spec: RunSpec) -> None:
    table = json.loads(spec.to_bytes())
    del table["outer"]
    short = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    assert RunSpec.model_validate(table).digest == spec.digest != sha256(short).digest()
    with pytest.raises(ConfigError, match="take it for another run"):
        parse_spec(short, sha256(short).digest())


def test_published_bytes_with_a_fault_are_refused_with_the_field(spec: RunSpec) -> None:
    table = json.loads(spec.to_bytes()) | {"netuid": -1}
    data = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(ConfigError, match="netuid: Input should be greater"):
        parse_spec(data, sha256(data).digest())


# --- what follows from a spec --------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_has_the_number_of_parameters_that_one_counts_by_hand(tied: bool) -> None:
    shapes = ModelSpec(
        vocabulary=257, layers=3, width=48, heads=6, kv_heads=2, ffn=100, context=8, tie_embeddings=tied
    ).shapes()
    layer = 48 + 48 * 48 + 2 * 16 * 48 + 48 * 48 + 48 + 3 * 48 * 100
    assert sum(prod(shape) for shape in shapes.values()) == 257 * 48 * (1 if tied else 2) + 3 * layer + 48
    assert len(shapes) == 2 + 9 * 3 + (not tied)


def test_the_size_of_an_object_is_envelope_digest_and_records(spec: RunSpec) -> None:
    assert spec.plaintext_bytes == 32 + sum(tensor.num_bytes for tensor in spec.layout)
    assert spec.object_bytes == 204 + spec.plaintext_bytes


def test_pages_cover_the_tokens_and_leave_one_for_the_last_target() -> None:
    assert toy_spec().page_tokens == 8 * 32
    assert toy_spec({"data.num_tokens": 256 * 4}).num_pages == 3
    assert toy_spec({"data.num_tokens": 256 * 4 + 1}).num_pages == 4


def test_a_stage_draws_from_its_own_pages() -> None:
    stages = {"data.num_tokens": 256 * 100 + 1, "inner.num_pages": 60}
    staged = Run(toy_spec(stages))
    changes = {"inner": {"first_page": 60, "num_pages": 0}}
    staged = staged.amended(chain_of(staged, {"from_round": 5, "changes": changes}))
    assert [staged.spec_at(round).num_pages for round in (4, 5)] == [60, 40]
    assert toy_spec({"data.num_tokens": 256 * 100 + 1, "inner.num_pages": 101}).num_pages == 100
    with pytest.raises(ConfigError, match=r"make 0 pages from inner\.first_page 100 on, a peer needs 2"):
        parsed({"data.num_tokens": 256 * 100 + 1, "inner.first_page": 100})


def test_a_peer_takes_enough_whole_pages_for_its_inner_steps() -> None:
    assert toy_spec().pages_per_round == 2
    assert toy_spec({"inner.steps": 5}).pages_per_round == 3


# --- amendments ----------------------------------------------------------------------------------------------


def chain_of(run: Run, *changes: dict[str, Any]) -> list[Amendment]:
    """Amendments of `run` that follow each other."""
    amendments: list[Amendment] = []
    previous = run.head
    for fields in changes:
        amendments.append(Amendment.model_validate({"previous": previous.hex(), "from_round": 1} | fields))
        previous = amendments[-1].digest
    return amendments


def test_a_spec_holds_until_the_round_that_an_amendment_names_and_the_run_keeps_its_id(run: Run) -> None:
    amended = run.amended(
        chain_of(
            run,
            {"from_round": 5, "changes": {"outer": {"alpha": 0.65}}},
            {"from_round": 9, "changes": {"inner": {"peak_lr": 1e-3}, "protocol": {"max_protocol": 5}}},
        )
    )
    assert [amended.spec_at(r).outer.alpha for r in (0, 4, 5, 8, 9, 10**6)] == [1.0, 1.0, 0.65, 0.65, 0.65, 0.65]
    assert [amended.spec_at(r).inner.peak_lr for r in (8, 9)] == [3e-3, 1e-3]
    assert [amended.spec_at(r).max_protocol for r in (8, 9)] == [4, 5]
    assert amended.id == run.id
    assert amended.head == amended.amendments[-1].digest != run.head == run.id
    assert (amended.clock, amended.layout) == (run.clock, run.layout)


def test_of_two_amendments_for_one_round_the_later_holds(run: Run) -> None:
    amended = run.amended(
        chain_of(
            run,
            {"from_round": 5, "changes": {"outer": {"alpha": 0.6}}},
            {"from_round": 5, "changes": {"outer": {"alpha": 0.7}}},
        )
    )
    assert amended.spec_at(5).outer.alpha == 0.7


def test_amendments_can_be_added_one_by_one_or_together(run: Run) -> None:
    first, second = chain_of(run, {"from_round": 3}, {"from_round": 4})
    assert run.amended([first]).amended([second]) == run.amended([first, second])


def test_amendments_that_do_not_follow_one_another_are_refused(run: Run) -> None:
    first, second = chain_of(run, {"from_round": 3}, {"from_round": 4})
    for broken in ([second], [second, first], [first, first]):
        with pytest.raises(ConfigError, match="do not follow one another"):
            run.amended(broken)


def test_one_for_a_far_round_shuts_out_none_that_follow(run: Run) -> None:
    far = {"from_round": 2**32 - 1, "changes": {"outer": {"alpha": 0.1}, "gauntlet": {"burn_share": 1.0}}}
    near = {"from_round": 4, "changes": {"outer": {"alpha": 0.5}}}
    amended = run.amended(chain_of(run, far, near))
    assert [amended.spec_at(r).outer.alpha for r in (3, 4, 2**32 - 2)] == [1.0, 0.5, 0.5]
    last = amended.spec_at(2**32 - 1)
    assert (last.outer.alpha, last.gauntlet.burn_share) == (0.5, 1.0), "in the order of publication"


@given(rounds=st.lists(st.integers(1, 6), max_size=6), values=st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_a_rounds_spec_is_the_first_one_with_all_that_hold_by_then_in_order(
    rounds: list[int], values: list[int]
) -> None:
    run = Run(toy_spec())
    fields = ("peak_lr", "final_lr", "clip")
    changes = [{fields[at % 3]: values[at] / 10} for at in range(len(rounds))]
    amended = run.amended(
        chain_of(run, *({"from_round": r, "changes": {"inner": c}} for r, c in zip(rounds, changes, strict=True)))
    )
    for round in range(8):
        table = run.first.model_dump(mode="json")
        head = run.id
        for amendment in amended.amendments:
            if amendment.from_round <= round:
                table["inner"] |= amendment.changes["inner"]
                head = amendment.digest
        assert amended.spec_at(round) == RunSpec.model_validate(table)
        assert amended.head_at(round) == head


def test_an_amendment_cannot_void_from_a_block_before_its_own_round(run: Run) -> None:
    starts = run.clock.start(8)
    (good,) = chain_of(run, {"from_round": 8, "void_round": 7, "void_from_block": starts})
    assert run.amended([good]).voided(7, starts)
    (early,) = chain_of(run, {"from_round": 8, "void_round": 7, "void_from_block": starts - 1})
    with pytest.raises(ConfigError, match="holds only from block"):
        run.amended([early])


@pytest.mark.parametrize("table", ["clock", "model", "compression", "data", "name", "owner"])
def test_an_amendment_cannot_touch_what_fixes_clock_and_layout(run: Run, table: str) -> None:
    with pytest.raises(ValidationError, match="changes"):
        chain_of(run, {"changes": {table: {"k": 1}}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outer": {"beta": 1.0}}, r"unknown fields of outer: \['beta'\]"),
        ({"protocol": {"netuid": 3}}, r"unknown fields of protocol: \['netuid'\]"),
        ({"inner": {"optimizer": "muon"}}, "inner.optimizer, which stays"),
        ({"outer": {"alpha": "Legal winner"}}, "amended from round 1 is not a valid run spec:\n  outer.alpha: "),
        ({"protocol": {"min_protocol": 5}}, "min_protocol 5 is above max_protocol 4"),
        ({"inner": {"steps": 10**6}}, "a peer needs 500000 a round"),
    ],
)
def test_an_amendment_that_makes_no_valid_spec_is_refused(run: Run, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        run.amended(chain_of(run, {"changes": changes}))
    assert "Legal winner" not in str(refusal.value)


def test_a_round_is_void_from_the_stated_height_on_and_no_other_round_is(run: Run) -> None:
    amended = run.amended(chain_of(run, {"from_round": 9, "void_round": 7, "void_from_block": 400}))
    assert [amended.voided(7, block) for block in (0, 399, 400, 10**6)] == [False, False, True, True]
    assert not amended.voided(6, 10**6)
    assert not amended.voided(8, 10**6)
    assert not run.voided(7, 10**6)


@pytest.mark.parametrize("half", [{"void_round": 7}, {"void_from_block": 400}])
def test_a_void_without_round_or_height_is_refused(run: Run, half: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="together or not at all"):
        chain_of(run, half)


def test_amendments_survive_their_bytes(run: Run) -> None:
    (amendment,) = chain_of(run, {"changes": {"gauntlet": {"burn_share": 0.25}}, "void_round": 0, "void_from_block": 9})
    assert parse_amendment(amendment.to_bytes(), amendment.digest) == amendment


def test_amendment_bytes_with_a_fault_are_refused(run: Run) -> None:
    (amendment,) = chain_of(run, {})
    table = json.loads(amendment.to_bytes())
    short = {name: value for name, value in table.items() if name != "changes"}
    for body, message in [
        (table | {"from_round": 0}, "from_round: Input should be greater than 0"),
        (table | {"previous": "Legal winner"}, "previous: expected a sha256 digest"),
        (table | {"extra": 1}, "extra: Extra inputs are not permitted"),
        (short, "not in canonical form"),
    ]:
        data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(InvalidMessage, match=message) as refusal:
            parse_amendment(data, sha256(data).digest())
        assert "Legal winner" not in str(refusal.value)
    with pytest.raises(InvalidMessage, match="do not hash"):
        parse_amendment(amendment.to_bytes(), run.id)


def test_a_run_spec_is_not_an_amendment_and_an_amendment_is_not_a_run_spec(run: Run) -> None:
    (amendment,) = chain_of(run, {})
    with pytest.raises(InvalidMessage, match="amendment: "):
        parse_amendment(run.first.to_bytes(), run.id)
    with pytest.raises(ConfigError, match="not a valid run spec"):
        parse_spec(amendment.to_bytes(), amendment.digest)


@given(st.binary(max_size=200))
def test_any_bytes_under_their_own_digest_are_refused_in_words(data: bytes) -> None:
    digest = sha256(data).digest()
    with pytest.raises((ConfigError, InvalidMessage)):
        parse_spec(data, digest)
    with pytest.raises(InvalidMessage):
        parse_amendment(data, digest)
