"""The causes of a node's troubles, in constant words: whose it is to mend, what it costs, and what to do.

docs/troubleshooting.md shows this table; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class About(StrEnum):
    """What a trouble is about. A node has at most one about each; another one, or a mend, replaces it."""

    CLOCK = "clock"
    CHAIN = "chain"
    HOTKEY = "hotkey"
    PERMIT = "permit"
    BUCKET = "bucket"
    READ_KEY = "read_key"
    WORK = "work"
    STATE = "state"
    RUN = "run"
    WEIGHTS = "weights"
    DISK = "disk"
    VERIFICATION = "verification"
    PROCESS = "process"


class Owner(StrEnum):
    """Whose it is to mend."""

    YOU = "you"
    EITHER = "you, or your provider"
    PROVIDER = "the store's provider"
    CHAIN = "the chain"
    RUN = "the run's owner"
    SUBNET = "the subnet's owner"
    OTHERS = "other nodes"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause by its code, in constant words. `says`: what is so. `costs`: what follows. `do`: the remedy."""

    about: About
    owner: Owner
    says: str
    costs: str
    do: str


_UNREAD = "others read nothing new of this node, so its rounds do not count and are not paid; its state folder is safe"
_ITSELF = "the node goes on by itself then"
_AGAIN = "start the node again between two rounds"
_KEY = "bucket.access_key and bucket.secret_key"
_NODE = "another one (--network wss://..) and start the node again between two rounds"
_LATE_POSTS = "this node sees each deadline late, so its posts and uploads may come too late to count"

CAUSES: Mapping[str, Cause] = {
    "clock_wrong": Cause(
        About.CLOCK,
        Owner.YOU,
        "this machine's clock is wrong",
        "stores refuse what is signed by it, and then nothing of this node counts",
        f"set it, on the host of a container, and keep it right by NTP: sudo timedatectl set-ntp true; {_ITSELF}",
    ),
    "chain_silent": Cause(
        About.CHAIN,
        Owner.EITHER,
        "the chain node does not answer",
        "nothing can be read or posted, so this node's rounds are lost until it does",
        f"check this machine's link (firewall, name server, proxy), or take {_NODE}",
    ),
    "chain_halted": Cause(
        About.CHAIN,
        Owner.CHAIN,
        "this chain node shows no new final block",
        "no round ends here meanwhile; nothing that was agreed is lost",
        f"ask another chain node or an explorer for its newest finalized block. If that is newer, take {_NODE}; if "
        f"not, the chain has halted: wait, {_ITSELF}",
    ),
    "chain_behind": Cause(
        About.CHAIN,
        Owner.EITHER,
        "this chain node is behind the chain",
        _LATE_POSTS,
        f"wait a round, it may catch up (an explorer shows the newest final block). If it stays behind, take {_NODE}",
    ),
    "chain_pruned": Cause(
        About.CHAIN,
        Owner.YOU,
        "this chain node has deleted blocks' state that this node needs",
        "this node cannot read the rounds that it has missed",
        "name a chain node that keeps all state (--archives wss://..), and start the node again",
    ),
    "chain_other": Cause(
        About.CHAIN,
        Owner.YOU,
        "this chain node is of another chain",
        "nothing of the run can be read or posted there",
        f"take {_NODE}",
    ),
    "posts_used_up": Cause(
        About.CHAIN,
        Owner.YOU,
        "this hotkey has used up the bytes that it may post in this epoch",
        "the chain takes no commitment or vote of it until the next epoch",
        "let one node alone post with this hotkey; the next epoch gives new bytes",
    ),
    "no_money": Cause(
        About.CHAIN,
        Owner.YOU,
        "the coldkey can't pay the fees of this hotkey's posts",
        "the chain takes nothing of this node, so no round counts",
        f"send it some TAO (btcli wallet transfer); {_ITSELF}",
    ),
    "posts_lost": Cause(
        About.CHAIN,
        Owner.CHAIN,
        "the chain takes what this node posts into no block",
        "the round does not count",
        f"wait: the node tries again by itself. If it lasts, take {_NODE}",
    ),
    "chain_refuses": Cause(
        About.CHAIN,
        Owner.CHAIN,
        "the chain refuses what this node posts",
        "the round does not count",
        f"wait: the node tries again by itself. If it lasts for three rounds, take {_NODE}",
    ),
    "not_registered": Cause(
        About.HOTKEY,
        Owner.YOU,
        "this hotkey is not registered on the subnet, or not any more",
        "the chain takes nothing of this node, so it trains and judges for nothing and does neither meanwhile",
        f"register it, which costs TAO (btcli subnet register, where the coldkey is); {_ITSELF}",
    ),
    "other_process": Cause(
        About.HOTKEY,
        Owner.YOU,
        "another process posts with this hotkey",
        "each overwrites the other's commitment, so neither counts",
        f"look for it here, in containers and wherever the hotkey's file is, and stop it: {_ITSELF}. If there is none, "
        "the hotkey is stolen: stop this node, and register a new hotkey",
    ),
    "no_permit": Cause(
        About.PERMIT,
        Owner.YOU,
        "this hotkey has no validator permit",
        "its votes do not count, and the chain refuses its weights",
        f"stake more to it than the smallest with a permit has (btcli stake add, where the coldkey is); the next epoch "
        f"gives the permit, and {_ITSELF}",
    ),
    "bucket_clock": Cause(
        About.BUCKET,
        Owner.YOU,
        "our own bucket's store takes this machine's clock for wrong",
        _UNREAD,
        f"set it, on the host of a container, and keep it right by NTP: sudo timedatectl set-ntp true; {_ITSELF}",
    ),
    "bucket_full": Cause(
        About.BUCKET,
        Owner.YOU,
        "our own bucket is full, or over its quota",
        _UNREAD,
        f"free room in it, or raise the quota at its provider; {_ITSELF}",
    ),
    "bucket_throttled": Cause(
        About.BUCKET,
        Owner.EITHER,
        "our own bucket's store is busy or refuses so many requests",
        _UNREAD,
        f"wait a round: {_ITSELF}. If it lasts, see the provider's status page, or raise the account's limit",
    ),
    "bucket_expired": Cause(
        About.BUCKET,
        Owner.YOU,
        "the key with which we write to our own bucket has expired",
        _UNREAD,
        f"make a new one, put it into {_KEY}, and {_AGAIN}",
    ),
    "bucket_suspended": Cause(
        About.BUCKET,
        Owner.YOU,
        "the account of our own bucket is suspended or unpaid",
        _UNREAD,
        f"settle it in its provider's console; {_ITSELF}",
    ),
    "bucket_unknown_key": Cause(
        About.BUCKET,
        Owner.YOU,
        "our own bucket's store does not know the access key",
        _UNREAD,
        f"put a key that reads and writes into {_KEY}, and {_AGAIN}",
    ),
    "bucket_wrong_secret": Cause(
        About.BUCKET,
        Owner.YOU,
        "the secret key of our own bucket does not belong to its access key",
        _UNREAD,
        f"copy both anew into {_KEY}, and {_AGAIN}",
    ),
    "bucket_denied": Cause(
        About.BUCKET,
        Owner.YOU,
        "our own bucket refuses our writes",
        _UNREAD,
        f"let the key of {_KEY} write to it, in its provider's console: {_ITSELF}; or start the node again with "
        "another key",
    ),
    "bucket_untidy": Cause(
        About.BUCKET,
        Owner.YOU,
        "our own bucket does not let us list or delete",
        "rounds count as before, but old objects stay, and cost their storage",
        f"let the key of {_KEY} list and delete in it, in its provider's console: {_ITSELF}",
    ),
    "bucket_missing": Cause(
        About.BUCKET,
        Owner.YOU,
        "our own bucket does not exist any more",
        _UNREAD,
        f"make it again under the same name: {_ITSELF}; or correct bucket.name, and {_AGAIN}",
    ),
    "bucket_silent": Cause(
        About.BUCKET,
        Owner.EITHER,
        "our own bucket's store does not answer in time",
        _UNREAD,
        f"check this machine's link to it; if others reach it as badly, wait: {_ITSELF}",
    ),
    "bucket_unreachable": Cause(
        About.BUCKET,
        Owner.EITHER,
        "our own bucket's store cannot be reached",
        _UNREAD,
        f"check this machine's link (firewall, name server); if it is the store's outage, wait: {_ITSELF}",
    ),
    "bucket_fails": Cause(
        About.BUCKET,
        Owner.PROVIDER,
        "our own bucket's store fails",
        _UNREAD,
        f"see its provider's status page and wait: {_ITSELF}",
    ),
    "read_key_refused": Cause(
        About.READ_KEY,
        Owner.YOU,
        "the read key that we publish does not open our own bucket",
        "nobody can read this node's work, so it counts as MISSING and is not paid",
        "make a read-only key for this bucket alone, put it into bucket.read_access_key and bucket.read_secret_key, "
        f"and {_AGAIN}",
    ),
    "unread_by_others": Cause(
        About.READ_KEY,
        Owner.EITHER,
        "our own bucket cannot be read from outside",
        "nobody can read this node's work, so it counts as MISSING and is not paid",
        f"check this machine's link and the store's status page; if it is the store's outage, wait: {_ITSELF}",
    ),
    "too_slow": Cause(
        About.WORK,
        Owner.YOU,
        "the work was not done before its deadline",
        "the round does not count",
        "see the phases of the last rounds; murmur doctor's checks links and pace say which part is too slow",
    ),
    "diverged": Cause(
        About.WORK,
        Owner.YOU,
        "training has diverged: the loss is not finite",
        "nothing is sent in this round",
        "keep the run's inner settings; check the GPU and its memory",
    ),
    "broke_off": Cause(
        About.WORK,
        Owner.OTHERS,
        "the round broke off for what this node reads of others",
        "the round may be lost; the node goes on with it while there is time",
        "nothing. If it comes each round, check this machine's link: murmur doctor's checks strangers and links",
    ),
    "apart": Cause(
        About.STATE,
        Owner.OTHERS,
        "our model is not the run's",
        "this node follows and abstains; nothing of it counts until it has caught up",
        "nothing in one round. If it lasts, check this machine's link to other buckets, then its state folder",
    ),
    "run_replaced": Cause(
        About.RUN,
        Owner.RUN,
        "the owner's slot on chain names another run",
        "this run goes on for those who are in it, but newcomers do not find it",
        "ask the run's owner. To follow the other run, start the node again with another --home",
    ),
    "owner_unread": Cause(
        About.RUN,
        Owner.RUN,
        "the bucket of the run's owner cannot be read",
        "an amendment in it is not known here: from its round on this node would be apart",
        "wait. If it lasts, check this machine's link, and tell the run's owner",
    ),
    "amendment_invalid": Cause(
        About.RUN,
        Owner.RUN,
        "what the owner's slot names is no amendment of this run",
        "nothing: no node follows it, and the known spec stays",
        "nothing here: the run's owner has to publish another",
    ),
    "weights_unrevealed": Cause(
        About.WEIGHTS,
        Owner.CHAIN,
        "weights that this hotkey set were not revealed when they were due",
        "nobody is paid by them",
        "ask the subnet's owner whether commit-reveal works on it; newer weights follow by themselves",
    ),
    "weights_unpaid": Cause(
        About.WEIGHTS,
        Owner.YOU,
        "the coldkey can't pay the fee of this hotkey's weights",
        "nobody is paid by them",
        f"send it some TAO (btcli wallet transfer); {_ITSELF}",
    ),
    "weights_refused": Cause(
        About.WEIGHTS,
        Owner.YOU,
        "the chain did not take this hotkey's weights",
        "nobody is paid by them",
        "stake and permit: add stake, wait an epoch. A rate limit or a fork: wait. Else update to the newest release",
    ),
    "disk_low": Cause(
        About.DISK,
        Owner.YOU,
        "the disk of the state folder is nearly full",
        "the node stops once it cannot save a round",
        "free space there, or keep less of the data set: --data_gigabytes",
    ),
    "cannot_start": Cause(
        About.PROCESS,
        Owner.YOU,
        "the node cannot start",
        "it takes no part; nothing was trained or published",
        "mend that, then start it again",
    ),
    "waits": Cause(
        About.PROCESS,
        Owner.EITHER,
        "the node waits for a server before it starts",
        "it takes no part meanwhile; nothing was trained or published",
        "check this machine's link; if it is the server's outage, wait: the node starts by itself then",
    ),
    "stopped": Cause(
        About.PROCESS,
        Owner.YOU,
        "the node has stopped",
        "it takes no part; everything is saved",
        "mend that, then start it again",
    ),
    "gone": Cause(
        About.PROCESS,
        Owner.YOU,
        "the node's process has ended without a word",
        "it takes no part; everything is saved",
        "start it again. If it ends so again, something kills it: is the memory full (dmesg)",
    ),
    "silent": Cause(
        About.PROCESS,
        Owner.YOU,
        "the node has ended no round for two rounds' time",
        "it probably takes no part",
        "does its process run? If not, start it again; if it does, its log says what it waits for",
    ),
    "not_counting": Cause(
        About.WORK,
        Owner.YOU,
        "none of the node's last rounds counted",
        "they are not paid",
        "murmur explain HOTKEY says why, by which number, and what to do",
    ),
    "verifies_nobody": Cause(
        About.VERIFICATION,
        Owner.YOU,
        "this validator has repeated no miner's steps for three rounds",
        "it pays for work that it has not seen, and finds no cheat; its votes and scores count as before",
        "murmur plan says what a validator of this run needs. It judges on without that",
    ),
    "never_began": Cause(
        About.PROCESS,
        Owner.YOU,
        "the node has not done anything yet",
        "it takes no part",
        "read its log; at a first start it fetches the run's state and data",
    ),
}
