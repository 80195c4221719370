"""Object keys in a peer's bucket. Built from numbers and digests only: nothing a peer chose becomes part of a key."""

from protocol.types import Digest, PeerId

_ONCE = {"payload", "reveal", "peer-report", "report", "selection", "mirror", "mirror-reveal", "record", "amendment"}


def _run(run: Digest) -> str:
    return run.hex()[:16]


def payload(run: Digest, round: int) -> str:
    """A miner's sealed submission: envelope, then ciphertext."""
    return f"{_run(run)}/payload/{round:08d}"


def payloads(run: Digest) -> str:
    """What the keys of all payloads begin with, in the bucket that a cluster shares: a listing has the oldest first."""
    return f"{_run(run)}/payload/"


def members_payload(run: Digest, round: int, member: PeerId, key_hash: bytes) -> str:
    """A member's sealed update, there. key_hash: sha256 of the key that opens it. That is drawn anew for each sealing,
    so nothing else ever comes to stand under the key that a claim leads to."""
    return f"{payload(run, round)}/{member.hex()}/{key_hash.hex()}"


def reveal(run: Digest, round: int) -> str:
    """A miner's signed key and in-sync proof."""
    return f"{_run(run)}/reveal/{round:08d}"


def peer_report(run: Digest, round: int) -> str:
    """A miner's signed claims (loss, phase seconds): shown, never decided on."""
    return f"{_run(run)}/peer-report/{round:08d}"


def report(run: Digest, round: int) -> str:
    """A validator's signed report: every hotkey's reason and numbers."""
    return f"{_run(run)}/report/{round:08d}"


def selection(run: Digest, link: Digest) -> str:
    """A validator's copy of an agreed selection, under the link that the next one names as `previous`: joiners walk
    these back from where the run stands."""
    return f"{_run(run)}/selection/{link.hex()}"


def mirror(run: Digest, round: int, peer: PeerId) -> str:
    """A validator's copy of a miner's sealed submission."""
    return f"{_run(run)}/mirror/{round:08d}/{peer.hex()}"


def mirror_reveal(run: Digest, round: int, peer: PeerId) -> str:
    """A validator's copy of a miner's reveal."""
    return f"{_run(run)}/mirror-reveal/{round:08d}/{peer.hex()}"


def wanted(run: Digest) -> str:
    """A peer's signed list of the payloads that it lacks, overwritten by the next one."""
    return f"{_run(run)}/wanted"


def wanted_by(run: Digest) -> str:
    """What the keys of all members' lists of what they lack begin with, in the bucket that a cluster shares."""
    return f"{_run(run)}/wanted/"


def checkpoints(run: Digest) -> str:
    """A validator's signed document of the states that it has put up whole, and of those that it stood at. One key, so
    that nobody has to guess in which rounds there was one."""
    return f"{_run(run)}/checkpoints"


def members_checkpoints(run: Digest) -> str:
    """What the keys of members' documents of their checkpoints begin with, in the bucket that a cluster shares."""
    return f"{_run(run)}/checkpoints/"


def states(run: Digest) -> str:
    """What the keys of the files of all checkpoints begin with, there: one that two members put up is one object."""
    return f"{_run(run)}/state/"


def group(run: Digest) -> str:
    """Whose run it is: the sha256 of the group's secret, created once."""
    return f"{_run(run)}/group"


def member(run: Digest, member: PeerId) -> str:
    """What the keys of a member's own trials of the bucket begin with."""
    return f"{_run(run)}/member/{member.hex()}/"


def beats(run: Digest) -> str:
    """What the keys of all members' beats begin with."""
    return f"{_run(run)}/beat/"


def all_claims(run: Digest) -> str:
    """What the keys of all claims begin with: a listing has the oldest first."""
    return f"{_run(run)}/claim/"


def claims(run: Digest, round: int) -> str:
    """What the keys of all claims of a round begin with."""
    return f"{all_claims(run)}{round:08d}/"


def record(run: Digest, round: int) -> str:
    """What a cluster's round came to: created once, by whoever closes it."""
    return f"{_run(run)}/record/{round:08d}"


def amendment(run: Digest, number: int) -> str:
    """A change of a cluster's spec: created once. The first one is number 1."""
    return f"{_run(run)}/amendment/{number:08d}"


def drain(run: Digest, member: PeerId) -> str:
    """The wish that this member leaves after its round: it deletes it when it does."""
    return f"{_run(run)}/drain/{member.hex()}"


def blob(digest: Digest) -> str:
    """Content under its own sha256: specs, amendments, shards, checkpoint files."""
    return f"blob/{digest.hex()}"


def is_final(key: str) -> bool:
    """Whether nothing else comes to stand under this key once something does. What a cache keeps of it stays right."""
    first, *rest = key.split("/")
    return first == "blob" or (len(rest) > 1 and rest[0] in _ONCE)


def trial() -> str:
    """Written, read and deleted again at a node's start, to try the key that it publishes."""
    return "trial"
