"""The fate of a submission, judged by blocks, on a chain that loses things."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bittensor._transport.errors import SubstrateRequestException
from bittensor.result import ExtrinsicResult, RpcConnectionError, chain_error_from_substrate_request

from murmur.chain import submission
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.submission import GIVE_UP_BLOCKS, UNSEEN_BLOCKS
from murmur.protocol.errors import ChainError
from tests.chain.stubs import ALICE, WALLET, Stub

FIELDS = (b"x",)
MOST_SENDS = GIVE_UP_BLOCKS // UNSEEN_BLOCKS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(submission, "_BACK_OFF_SECONDS", 0.005)


class Moving(Stub):
    """A block comes with every look at the head. `sent` are (head, nonce) of each submission; what becomes of the n-th
    `fates[n]` says, the last one for good."""

    def __init__(self, *fates: Callable[["Moving"], ExtrinsicResult | None]) -> None:
        super().__init__()
        self.height = 9
        self.fates = fates
        self.sent: list[tuple[int, int]] = []
        self.next_index = 5
        self.storage["System", "Account"] = {"nonce": 3, "data": {"free": 0}}
        self.storage["Commitments", "CommitmentOf"] = None

    async def block_number(self) -> int:
        self.height += 1
        return self.height

    async def account_next_index(self, address: str) -> int:
        assert address == ALICE.ss58_address
        return self.next_index

    async def submit(self, call: Any, keypair: Any, **options: Any) -> ExtrinsicResult:
        self.sent.append((self.height, options["nonce"]))
        result = self.fates[min(len(self.sent), len(self.fates)) - 1](self)
        if result is None:
            await asyncio.sleep(60.0)  # a subscription that went silent
            raise AssertionError("waited for too long")
        return result

    def write(self) -> None:
        self.storage["Commitments", "CommitmentOf"] = {
            "deposit": 0,
            "block": self.height,
            "info": {"fields": [{"Raw1": "0x78"}]},
        }


def chain_on(stub: Stub, timeout: float = 5.0) -> SubtensorChain:
    return open_chain("ws://stub.invalid", 1, WALLET, call_timeout_seconds=timeout, substrate_factory=lambda: stub)


def silence(_: Moving) -> None:
    return None


def inclusion(stub: Moving) -> ExtrinsicResult:
    return ExtrinsicResult(success=True, block_hash="0x00", extrinsic_id=f"{stub.height}-0001")


def refusal(code: int, message: str, data: Any = None) -> Callable[[Moving], ExtrinsicResult]:
    """What the SDK makes of an author RPC's error."""
    error = chain_error_from_substrate_request(
        SubstrateRequestException({"error": {"code": code, "message": message, "data": data}})
    )
    return lambda _: ExtrinsicResult(success=False, message=error.message, error=error)


def test_what_is_in_no_block_is_sent_again_after_four_with_the_nonce_that_the_first_has_if_it_still_waits() -> None:
    stub = Moving(silence, inclusion)
    assert chain_on(stub).publish(FIELDS) == stub.sent[1][0]
    (first, nonce), (second, again) = stub.sent
    assert first + UNSEEN_BLOCKS <= second <= first + UNSEEN_BLOCKS + 3
    assert (nonce, again) == (5, 3), "first behind all that waits in the pool, then the account's next on chain"


def test_what_is_on_chain_though_nobody_said_so_is_found_and_not_sent_again() -> None:
    def unheard(stub: Moving) -> None:
        stub.write()

    stub = Moving(unheard)
    published = chain_on(stub).publish(FIELDS)
    assert published == stub.storage["Commitments", "CommitmentOf"]["block"]
    assert len(stub.sent) == 1


def test_what_never_gets_into_a_block_is_given_up_by_blocks_after_a_few_sends() -> None:
    stub = Moving(silence)
    with pytest.raises(ChainError, match="in no block") as caught:
        chain_on(stub).publish(FIELDS)
    assert caught.value.code is None
    assert 1 < len(stub.sent) <= MOST_SENDS
    assert stub.height <= stub.sent[0][0] + GIVE_UP_BLOCKS + 6


def test_the_last_look_before_giving_up_finds_what_was_on_chain_by_then() -> None:
    class Late(Moving):
        async def block_number(self) -> int:
            number = await super().block_number()
            if self.sent and number >= self.sent[0][0] + GIVE_UP_BLOCKS:
                self.write()
            return number

    stub = Late(silence)
    published = chain_on(stub).publish(FIELDS)
    assert published == stub.storage["Commitments", "CommitmentOf"]["block"]


@pytest.mark.parametrize(
    ("code", "message", "data", "name"),
    [
        (1010, "Invalid Transaction", "Transaction call is not expected", "Call"),
        (1010, "Invalid Transaction", "Custom error: 6", "SettingWeightsTooFast"),
        (1010, "Invalid Transaction", "Custom error: 10", "HotKeyNotRegisteredInNetwork"),
        (1010, "Invalid Transaction", "Custom error: 199", "InvalidTransaction"),
        (1010, "Invalid Transaction", None, "InvalidTransaction"),
        (1002, "Verification Error: Runtime error: Execution failed", None, "VerificationError"),
        (1011, "Unknown Transaction Validity", "NoUnsignedValidator", "UnknownTransactionValidity"),
    ],
)
def test_a_refusal_of_the_pool_is_a_verdict_with_a_name_and_sent_once(
    code: int, message: str, data: Any, name: str
) -> None:
    stub = Moving(refusal(code, message, data))
    with pytest.raises(ChainError) as caught:
        chain_on(stub).publish(FIELDS)
    assert caught.value.code == name
    assert len(stub.sent) == 1


BAD_PROOF = refusal(1010, "Invalid Transaction", "Transaction has a bad signature")


def test_a_refused_signature_is_made_anew_once_over_a_new_session_then_believed() -> None:
    """A session keeps the version of the runtime that it began with, and an upgrade makes its signatures worthless."""
    opened: list[Moving] = []

    def opens(*fates: Callable[[Moving], ExtrinsicResult | None]) -> SubtensorChain:
        opened.clear()

        def factory() -> Moving:
            opened.append(Moving(fates[len(opened)]))
            return opened[-1]

        return open_chain("ws://stub.invalid", 1, WALLET, call_timeout_seconds=5.0, substrate_factory=factory)

    assert opens(BAD_PROOF, inclusion).publish(FIELDS) == opened[1].sent[0][0]
    assert [len(stub.sent) for stub in opened] == [1, 1]
    with pytest.raises(ChainError) as caught:
        opens(BAD_PROOF, BAD_PROOF).publish(FIELDS)
    assert caught.value.code == "BadProof"
    assert [len(stub.sent) for stub in opened] == [1, 1]


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (1014, "Priority is too low: (5 vs 5)", "The transaction has too low priority to replace another"),
        (1013, "Transaction Already Imported", None),
        (1012, "Transaction is temporarily banned", None),
        (1016, "Immediately Dropped", "The transaction couldn't enter the pool because of the limit"),
        (1010, "Invalid Transaction", "Transaction is outdated"),
        (1010, "Invalid Transaction", "Transaction has an ancient birth block"),
        (1010, "Invalid Transaction", "Transaction would exhaust the resources of current block limit"),
    ],
)
def test_a_refusal_that_leaves_the_fate_open_is_waited_out_and_sent_a_few_times_at_most(
    code: int, message: str, data: Any
) -> None:
    stub = Moving(refusal(code, message, data), inclusion)
    assert chain_on(stub).publish(FIELDS) == stub.sent[1][0]
    assert stub.sent[1][0] >= stub.sent[0][0] + UNSEEN_BLOCKS
    stub = Moving(refusal(code, message, data))
    with pytest.raises(ChainError) as caught:
        chain_on(stub).publish(FIELDS)
    assert caught.value.code is None
    assert len(stub.sent) <= MOST_SENDS


def test_a_verdict_on_a_copy_does_not_hide_that_the_first_one_is_on_chain() -> None:
    """The copy is refused because the first has spent the quota."""

    def spent(stub: Moving) -> ExtrinsicResult:
        stub.write()
        return refusal(1010, "Invalid Transaction", "Custom error: 6")(stub)

    stub = Moving(silence, spent)
    assert chain_on(stub).publish(FIELDS) == stub.storage["Commitments", "CommitmentOf"]["block"]


def test_what_the_owner_cannot_pay_for_is_said_in_plain_words() -> None:
    stub = Moving(refusal(1010, "Invalid Transaction", "Inability to pay some fees (e.g. account balance too low)"))
    stub.storage["SubtensorModule", "Owner"] = "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty"
    stub.storage["System", "Account"] = {"nonce": 3, "data": {"free": 1_500}}
    with pytest.raises(ChainError, match=r"coldkey 5FHneW.*0\.000001500 TAO.*[Ss]end some TAO") as caught:
        chain_on(stub).publish(FIELDS)
    assert caught.value.code == "Payment"
    assert len(stub.sent) == 1


def test_a_chain_that_makes_no_blocks_is_given_up_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_STILL_SECONDS", 0.1)

    class Still(Moving):
        async def block_number(self) -> int:
            return 9

    with pytest.raises(ChainError, match="makes no blocks"):
        chain_on(Still(silence), timeout=0.05).publish(FIELDS)


def test_a_chain_that_goes_away_in_the_middle_is_given_up_after_a_few_time_outs() -> None:
    class Gone(Moving):
        async def block_number(self) -> int:
            if self.sent:
                raise RpcConnectionError("gone")
            return await super().block_number()

    with pytest.raises(ChainError, match="given up") as caught:
        chain_on(Gone(silence), timeout=0.05).publish(FIELDS)
    assert caught.value.code is None
