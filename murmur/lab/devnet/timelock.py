"""Commit-reveal: weights that are committed sealed, and opened by the chain itself in a later epoch.

A commit made in epoch e is opened at the start of the block that begins epoch e + RevealPeriodEpochs, before that epoch
counts weights. A commit is checked for registration, rate, version and stake. The other checks run when it is opened; a
row refused then leaves no event and is only logged. Source: subtensor's timelocked commits and `reveal_crv3_commits`.
The one difference: commits are sealed to the devnet's own key (murmur/chain/beacon.py) instead of a drand round, so
`reveal_round` is stored but not awaited.
"""

from hashlib import blake2b

from loguru import logger

from murmur.chain import beacon
from murmur.lab.devnet.call import Call, DispatchError, Events
from murmur.lab.devnet.codec import compact, read_compact
from murmur.lab.devnet.staking import stake_of
from murmur.lab.devnet.storage import Storage
from murmur.lab.devnet.weights import MAIN_MECHANISM, has_rested, mark_update, put_weights, uid_of
from murmur.protocol.types import PeerId, hotkey, peer_id

MAX_UNREVEALED = 10
"""Unrevealed commits that a hotkey may have in an epoch."""
_SEALED_AT = {
    "commit_timelocked_weights": 4,
    "commit_timelocked_mechanism_weights": 5,
    "commit_crv3_mechanism_weights": 5,
}
"""Offset of the sealed weights in an encoded call: after pallet, call, netuid (2 bytes) and any mecid."""
_KEY_BYTES = 32
_NUMBER_BYTES = 8

Commits = list[tuple[str, int, bytes, int]]
"""(hotkey, block of the commit, sealed weights, reveal round)"""


def commit_timelocked_weights(
    call: Call, netuid: int, commit: object, reveal_round: int, commit_reveal_version: int
) -> None:
    _commit(call, netuid, MAIN_MECHANISM, "commit_timelocked_weights", reveal_round, commit_reveal_version)


def commit_timelocked_mechanism_weights(
    call: Call, netuid: int, mecid: int, commit: object, reveal_round: int, commit_reveal_version: int
) -> None:
    _commit(call, netuid, mecid, "commit_timelocked_mechanism_weights", reveal_round, commit_reveal_version)


def commit_crv3_mechanism_weights(call: Call, netuid: int, mecid: int, commit: object, reveal_round: int) -> None:
    """Commit by the older call, which has no version argument."""
    version = call.storage.get("CommitRevealWeightsVersion")
    _commit(call, netuid, mecid, "commit_crv3_mechanism_weights", reveal_round, version)


def check_size(function: str, raw: bytes) -> None:
    """Raise ValueError for a commit that the real runtime could not decode: its vector is bounded, which the metadata
    does not state."""
    if function in _SEALED_AT and len(_sealed(function, raw)) > beacon.MAX_SEALED_BYTES:
        raise ValueError(f"BoundedVec exceeds its limit: a commit of more than {beacon.MAX_SEALED_BYTES} bytes")


def _sealed(function: str, raw: bytes) -> bytes:
    """Return the sealed weights of an encoded call that decoded before. A decoded value does not distinguish bytes from
    text."""
    size, at = read_compact(raw, _SEALED_AT[function])
    return raw[at : at + size]


def _commit(call: Call, netuid: int, mecid: int, function: str, reveal_round: int, version: int) -> None:
    who, storage, sealed = call.signer(), call.storage, _sealed(function, call.raw)
    call.ensure(storage.get("NetworksAdded", netuid) and mecid == MAIN_MECHANISM, "MechanismDoesNotExist")
    call.ensure(storage.get("CommitRevealWeightsEnabled", netuid), "CommitRevealDisabled")
    call.ensure(version == storage.get("CommitRevealWeightsVersion"), "IncorrectCommitRevealVersion")
    uid = uid_of(call, netuid)
    call.ensure(has_rested(call, netuid, uid), "CommittingWeightsTooFast")
    call.ensure(stake_of(storage, who, netuid) >= storage.get("StakeThreshold"), "NotEnoughStakeToSetWeights")
    epoch = storage.get("SubnetEpochIndex", netuid)
    commits = _read(storage, netuid, epoch)
    call.ensure(sum(other == who for other, *_ in commits) < MAX_UNREVEALED, "TooManyUnrevealedCommits")
    _write(storage, netuid, epoch, [*commits, (who, call.block, sealed, reveal_round)])
    digest = blake2b(sealed, digest_size=32).digest()
    call.events.emit("SubtensorModule", "TimelockedWeightsCommitted", (who, netuid, digest, reveal_round))
    mark_update(call, netuid, uid)


def reveal(storage: Storage, events: Events, netuid: int, block: int, epoch: int, private_key: bytes) -> None:
    """Open the commits that are due when `epoch` begins with `block`, in their order."""
    due = epoch - storage.get("RevealPeriodEpochs", netuid)
    commits = _read(storage, netuid, due) if due >= 0 else []
    for who, committed, sealed, _round in commits:
        try:
            weights = beacon.decode(beacon.open(sealed, private_key))
            if weights.hotkey != peer_id(who):
                raise ValueError("another hotkey's weights")
            row = list(weights.uids), list(weights.values)
            with storage.transaction():
                put_weights(Call(storage, events, block, who, b""), netuid, MAIN_MECHANISM, *row, weights.version_key)
        except (ValueError, DispatchError) as error:
            logger.debug("a reveal was refused", hotkey=who, committed=committed, reason=str(error))
        else:
            events.emit("SubtensorModule", "TimelockedWeightsRevealed", (netuid, who))
    if commits:
        _write(storage, netuid, due, [])


def _read(storage: Storage, netuid: int, epoch: int) -> Commits:
    data = storage.raw(storage.codec.key("TimelockedWeightCommits", netuid, epoch))
    if data is None:
        return []
    commits: Commits = []
    count, at = read_compact(data, 0)
    for _ in range(count):
        who = hotkey(PeerId(data[at : at + _KEY_BYTES]))
        block = int.from_bytes(data[at + _KEY_BYTES : at + _KEY_BYTES + _NUMBER_BYTES], "little")
        size, at = read_compact(data, at + _KEY_BYTES + _NUMBER_BYTES)
        sealed = data[at : at + size]
        at += size
        commits.append((who, block, sealed, int.from_bytes(data[at : at + _NUMBER_BYTES], "little")))
        at += _NUMBER_BYTES
    return commits


def _write(storage: Storage, netuid: int, epoch: int, commits: Commits) -> None:
    if not commits:
        storage.delete("TimelockedWeightCommits", netuid, epoch)
        return
    data = compact(len(commits)) + b"".join(
        peer_id(who)
        + block.to_bytes(_NUMBER_BYTES, "little")
        + compact(len(sealed))
        + sealed
        + reveal_round.to_bytes(_NUMBER_BYTES, "little")
        for who, block, sealed, reveal_round in commits
    )
    storage.put_raw("TimelockedWeightCommits", netuid, epoch, value=data)
