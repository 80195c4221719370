"""The two chains that the contract suite runs on, brought to the same state: an owner at uid 0, then a validator with
stake and permit, then two miners. The outsider holds a key and nothing else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from murmur.chain import operator
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.keys import HotkeySigner
from murmur.lab.devnet import launch
from murmur.lab.devnet.genesis import Genesis
from murmur.protocol.ports import Chain
from murmur.protocol.types import PeerId
from tests.fakes.chain import FakeSigner, FakeWorld

NETUID = 2
EPOCH = 200
FINALITY_LAG = 4
RATE_LIMIT = 100
"""Ten seconds on the devnet: a busy machine calls twice within it. Nobody waits for it or for an epoch: `skip`."""
STAKE_RAO = 5 * 10**9
BLOCK_SECONDS = 0.1
CALL_SECONDS = 5.0

_VALIDATOR, _FIRST, _SECOND, _OUTSIDER = range(4)


class Harness(Protocol):
    stake_rao: int

    def chain(self, who: int) -> Chain:
        """The chain as hotkey `who` uses it; one per hotkey, kept."""
        ...

    def fresh_chain(self, who: int) -> Chain:
        """Another view that has seen nothing yet."""
        ...

    def peer(self, who: int) -> PeerId: ...

    @property
    def owner(self) -> PeerId:
        """The hotkey of the subnet's owner."""
        ...

    def skip(self, blocks: int) -> None:
        """Make so many blocks at once."""
        ...

    def reorg(self, depth: int) -> None:
        """Replace the last `depth` blocks; what they held goes back to the pool."""
        ...

    def stop(self) -> None:
        """The chain's node dies, without warning."""
        ...

    def start(self) -> None:
        """It comes back with all its state."""
        ...


class FakeHarness:
    stake_rao = STAKE_RAO

    def __init__(self, folder: Path, *, commit_reveal: bool = False) -> None:
        self._world = FakeWorld(
            finality_lag=FINALITY_LAG,
            epoch_blocks=EPOCH,
            weights_rate_limit=RATE_LIMIT,
            commit_reveal=commit_reveal,
        )
        self._peers = [FakeSigner(name).peer for name in ("validator", "first", "second", "outsider")]
        self._world.owner = FakeSigner("owner").peer
        self._world.register(self._world.owner)
        self._world.register(self._peers[_VALIDATOR], stake=STAKE_RAO, validates=True)
        self._world.register(self._peers[_FIRST])
        self._world.register(self._peers[_SECOND])
        self._world.step(FINALITY_LAG + 2)
        self._running = self._world.running(0.01)

    def __enter__(self) -> Self:
        self._running.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._running.__exit__(None, None, None)

    def chain(self, who: int) -> Chain:
        return self._world.chain(self._peers[who])

    fresh_chain = chain

    def peer(self, who: int) -> PeerId:
        return self._peers[who]

    @property
    def owner(self) -> PeerId:
        assert self._world.owner is not None
        return self._world.owner

    def skip(self, blocks: int) -> None:
        self._world.step(blocks)

    def reorg(self, depth: int) -> None:
        self._world.reorg(depth)

    def stop(self) -> None:
        self._world.down = True

    def start(self) -> None:
        self._world.down = False


class DevnetHarness:
    """A devnet process, and the adapter on it. Registration and stake go over the operator's real calls. With
    commit-reveal it also has the 1024 weights that a real subnet asks for."""

    stake_rao = STAKE_RAO

    def __init__(self, folder: Path, *, commit_reveal: bool = False) -> None:
        self._folder = folder
        self._commit_reveal = commit_reveal
        self._wallets = [wallet(f"//contract//{name}") for name in ("validator", "first", "second", "outsider")]
        self._owner = wallet("//contract//owner")
        self._chains: dict[int, SubtensorChain] = {}
        self._opened: list[SubtensorChain] = []
        self._process: launch.Devnet | None = None

    def __enter__(self) -> Self:
        try:
            self._bring_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _bring_up(self) -> None:
        payers = [entry.coldkey for entry in [self._owner, *self._wallets[:_OUTSIDER]]]
        payers.append(self._wallets[_OUTSIDER].hotkey)  # which no coldkey owns, so that it has to pay itself
        balances = {key.ss58_address: 100 * 10**9 for key in payers}
        genesis = Genesis.fast(
            owner_coldkey=self._owner.coldkey.ss58_address,
            owner_hotkey=self._owner.hotkey.ss58_address,
            balances=balances,
            netuid=NETUID,
            tempo_blocks=EPOCH,
            weights_rate_limit_blocks=RATE_LIMIT,
            commit_reveal=self._commit_reveal,
            min_allowed_weights=1024 if self._commit_reveal else 1,
        )
        self._process = launch.start(
            self._folder, genesis, block_seconds=BLOCK_SECONDS, finality_lag_blocks=FINALITY_LAG
        )
        for who in (_VALIDATOR, _FIRST, _SECOND):
            operator.register(self._chain(who), self._wallets[who])
        operator.add_stake(self._chain(_VALIDATOR), self._wallets[_VALIDATOR], STAKE_RAO)
        # Permits are given out by an epoch.
        chain = self._chain(_VALIDATOR)
        self.skip(EPOCH - chain.head() % EPOCH)
        chain.wait((chain.head() // EPOCH) * EPOCH, 120.0)

    def __exit__(self, *raised: object) -> None:
        for chain in self._opened:
            chain.close()
        if self._process is not None:
            self._process.stop()

    def chain(self, who: int) -> Chain:
        return self._chain(who)

    def _chain(self, who: int) -> SubtensorChain:
        if who not in self._chains:
            self._chains[who] = self.fresh_chain(who)
        return self._chains[who]

    def fresh_chain(self, who: int) -> SubtensorChain:
        assert self._process is not None
        wallet = self._wallets[who]
        chain = open_chain(self._process.url, NETUID, wallet, local=True, call_timeout_seconds=CALL_SECONDS)
        self._opened.append(chain)
        return chain

    def peer(self, who: int) -> PeerId:
        return HotkeySigner(self._wallets[who].hotkey).peer

    @property
    def owner(self) -> PeerId:
        return HotkeySigner(self._owner.hotkey).peer

    def skip(self, blocks: int) -> None:
        assert self._process is not None
        self._process.admin().step(blocks)

    def reorg(self, depth: int) -> None:
        assert self._process is not None
        self._process.admin().reorg(depth)

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()

    def start(self) -> None:
        assert self._process is not None
        port = urlsplit(self._process.url).port
        assert port is not None
        self._process = launch.start(
            self._folder, port=port, block_seconds=BLOCK_SECONDS, finality_lag_blocks=FINALITY_LAG
        )


def wallet(uri: str) -> Any:
    """A wallet in memory: the SDK takes anything that has these three keys."""
    from bittensor.sp_core import Keypair

    coldkey = Keypair.create_from_uri(f"{uri}//cold")
    return SimpleNamespace(hotkey=Keypair.create_from_uri(f"{uri}//hot"), coldkey=coldkey, coldkeypub=coldkey)
