"""A transport in memory, for what no healthy chain shows."""

from types import SimpleNamespace
from typing import Any, cast

from bittensor._transport.errors import StorageFunctionNotFound
from bittensor.result import ExtrinsicResult
from bittensor.sp_core import Keypair

ALICE, BOB = Keypair.create_from_uri("//Alice"), Keypair.create_from_uri("//Bob")
WALLET = cast(Any, SimpleNamespace(hotkey=ALICE, coldkey=ALICE, coldkeypub=ALICE))


class Stub:
    """A transport with one block and two neurons, Alice (a validator) and Bob, answering from `storage`; subclasses
    misbehave."""

    def __init__(self) -> None:
        self.storage: dict[tuple[str, str], Any] = {
            ("Timestamp", "Now"): 1_000,
            ("SubtensorModule", "Uids"): 0,
            ("SubtensorModule", "LastUpdate"): [0],
            ("System", "Account"): {"nonce": 0, "data": {"free": 5_000_000_000}},
        }
        self.permits = [True, False]
        self.calls: list[Any] = []
        self.token_symbols: dict[int, str] = {}

    async def connect(self) -> None: ...
    async def close(self) -> None: ...

    async def finalized_block_number(self) -> int:
        return 9

    async def block_number(self) -> int:
        return 9

    async def block_hash(self, block: int | None = None) -> str:
        return "0x" + (block or 9).to_bytes(32, "big").hex()

    async def query(
        self, module: str, item: str, params: list[Any] | None = None, block_hash: str | None = None
    ) -> Any:
        try:
            return self.storage[module, item]
        except KeyError:
            raise StorageFunctionNotFound(f"{module}.{item} not found") from None

    async def runtime_call(self, api: str, method: str, params: list[Any], block_hash: str | None = None) -> Any:
        return {
            "hotkeys": [ALICE.ss58_address, BOB.ss58_address],
            "total_stake": [5, 0],
            "validator_permit": self.permits,
            "last_update": [0, 0],
            "incentives": [0, 65535],
        }

    async def account_next_index(self, address: str) -> int:
        return 0

    async def compose(self, call: Any) -> Any:
        return call

    async def submit(self, call: Any, keypair: Any, **options: Any) -> ExtrinsicResult:
        self.calls.append(call)
        return ExtrinsicResult(success=True, block_hash="0x00", extrinsic_id="9-0001")
