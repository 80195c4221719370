"""Object keys in a peer's bucket. They are built from numbers and digests only: no text that a peer chose becomes part
of a key."""

from murmur.protocol.types import Digest, PeerId

_ONCE = {"payload", "reveal", "peer-report", "report", "selection", "mirror", "mirror-reveal", "record", "amendment"}


def _run(run: Digest) -> str:
    return run.hex()[:16]


def payload(run: Digest, round: int) -> str:
    """A miner's sealed submission: envelope, then ciphertext."""
    return f"{_run(run)}/payload/{round:08d}"


def payloads(run: Digest) -> str:
    """The prefix of all payloads in a cluster's shared bucket: a listing has the oldest first."""
    return f"{_run(run)}/payload/"


def members_payload(run: Digest, round: int, member: PeerId, key_hash: bytes) -> str:
    """A member's sealed update in the shared bucket. key_hash: sha256 of the key that opens it. That key is drawn anew
    for each sealing, so the key that a claim leads to never holds another object."""
    return f"{payload(run, round)}/{member.hex()}/{key_hash.hex()}"


def blocks(payload_key: str) -> str:
    """A sealed update's envelope and the leaves of its blocks, so that a part of it can be read and checked alone."""
    return f"{payload_key}-blocks"


def mean_part(run: Digest, round: int, owner: PeerId, link: Digest) -> str:
    """The pointer to this member's part of the mean (int8) of the record with this link: created once."""
    return f"{payload(run, round)}/{owner.hex()}/mean-{link.hex()}"


def mean(run: Digest, round: int) -> str:
    """The name of parts of a round's mean on a disk."""
    return f"{_run(run)}/mean/{round:08d}"


def reveal(run: Digest, round: int) -> str:
    """A miner's signed key and in-sync proof."""
    return f"{_run(run)}/reveal/{round:08d}"


def peer_report(run: Digest, round: int) -> str:
    """A miner's signed claims (loss, phase seconds): shown, never decided on."""
    return f"{_run(run)}/peer-report/{round:08d}"


def report(run: Digest, round: int) -> str:
    """A validator's signed report: reason and numbers of every hotkey."""
    return f"{_run(run)}/report/{round:08d}"


def selection(run: Digest, link: Digest) -> str:
    """A validator's copy of an agreed selection, under the link that the next one names as `previous`: joiners walk
    these back from the tip."""
    return f"{_run(run)}/selection/{link.hex()}"


def mirror(run: Digest, round: int, peer: PeerId) -> str:
    """A validator's copy of a miner's sealed submission."""
    return f"{_run(run)}/mirror/{round:08d}/{peer.hex()}"


def mirror_reveal(run: Digest, round: int, peer: PeerId) -> str:
    """A validator's copy of a miner's reveal."""
    return f"{_run(run)}/mirror-reveal/{round:08d}/{peer.hex()}"


def wanted(run: Digest) -> str:
    """A peer's signed list of payloads that it lacks; the next one overwrites it."""
    return f"{_run(run)}/wanted"


def wanted_by(run: Digest) -> str:
    """The prefix of all members' lists of payloads that they lack, in a cluster's shared bucket."""
    return f"{_run(run)}/wanted/"


def checkpoints(run: Digest) -> str:
    """A validator's signed document of its published states, and of its states in other rounds. It has one fixed key,
    so that readers need not guess the rounds."""
    return f"{_run(run)}/checkpoints"


def members_checkpoints(run: Digest) -> str:
    """The prefix of members' documents of their checkpoints, in a cluster's shared bucket."""
    return f"{_run(run)}/checkpoints/"


def all_states(run: Digest) -> str:
    """The prefix of the files of all checkpoints in a cluster's shared bucket: a listing has the oldest first."""
    return f"{_run(run)}/state/"


def states(run: Digest, round: int) -> str:
    """The prefix of the files of a round's checkpoint: a file that two members publish is one object."""
    return f"{all_states(run)}{round:08d}/"


def group(run: Digest) -> str:
    """The owner group of a run: the sha256 of the group's secret, created once."""
    return f"{_run(run)}/group"


def member(run: Digest, member: PeerId) -> str:
    """The prefix of a member's own trials of the bucket."""
    return f"{_run(run)}/member/{member.hex()}/"


def beats(run: Digest) -> str:
    """The prefix of all members' beats."""
    return f"{_run(run)}/beat/"


def all_claims(run: Digest) -> str:
    """The prefix of all claims: a listing has the oldest first."""
    return f"{_run(run)}/claim/"


def claims(run: Digest, round: int) -> str:
    """The prefix of all claims of a round."""
    return f"{all_claims(run)}{round:08d}/"


def record(run: Digest, round: int) -> str:
    """The record of a cluster's round: created once, by the member that closes the round."""
    return f"{_run(run)}/record/{round:08d}"


def amendment(run: Digest, number: int) -> str:
    """A change of a cluster's spec: created once. The first one is number 1."""
    return f"{_run(run)}/amendment/{number:08d}"


def drain(run: Digest, member: PeerId) -> str:
    """The request that this member leaves after its round; the member deletes it when it leaves."""
    return f"{_run(run)}/drain/{member.hex()}"


def blob(digest: Digest) -> str:
    """Content under its own sha256: specs, amendments, shards, checkpoint files."""
    return f"blob/{digest.hex()}"


def is_final(key: str) -> bool:
    """Whether the object under this key never changes, so that a cached copy stays right."""
    first, *rest = key.split("/")
    return first == "blob" or (len(rest) > 1 and rest[0] in _ONCE)


def trial() -> str:
    """A trial object that a node writes, reads and deletes at its start, to test the key that it publishes."""
    return "trial"
