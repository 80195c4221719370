"""`murmur run publish`: upload everything, post one digest on chain, and prove that a stranger can join."""

from argparse import Namespace
from math import ceil
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from murmur.cli.run import questions
from murmur.cli.run.questions import say
from murmur.data.shards import Shards
from murmur.node.chain import subnet_terms
from murmur.node.config.ports import Ports
from murmur.node.config.settings import OwnerConfig
from murmur.node.doctor.bucket_trial import require_read_only
from murmur.node.observe import reader
from murmur.node.program import process
from murmur.owner.draft import sealed
from murmur.owner.folder import DRAFT, THETA, RunFolder, open_folder
from murmur.owner.publish import announce, await_named, blobs_of, data_blobs, name, own_slot, put, theta_blobs, upload
from murmur.owner.verify_as_stranger import read_back
from murmur.plan.timetable import duration
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, InvalidMessage, StorageError
from murmur.protocol.run import Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest
from murmur.training import checkpoint

FEWEST_BLOCKS = 20
"""Least blocks from the publication to round 0: for the post, and for a node that waits for it."""
LATEST_BLOCKS = 4
"""Least blocks from the newest block to round 0 when the spec is posted: a post takes up to two of them."""
START_SECONDS = 600.0


def publish(options: Namespace) -> int:
    """Publish a run. Raises ConfigError for faults that the owner has to fix, StorageError and ChainError when the same
    command has to be repeated later."""
    process.log_to_stderr("ERROR")  # that a validator lacks a copy of the data is no concern of the owner's
    folder = open_folder(options.folder)
    settings = questions.owner_settings(OwnerConfig, options, folder.path)
    ports = questions.ports(settings, folder)
    stood = _in_slot(ports)
    with TemporaryDirectory() as home:
        named = _named(ports, settings, folder, Path(home), replace=options.replace)
    lead = _lead(folder, options.start_in)
    data = Shards.open(folder.data, index_digest=Digest(bytes.fromhex(folder.table["data"]["index"])))
    whole = not options.without_data
    if whole:
        for split, what in ((data.train, "training"), (data.held_out, "held-out")):
            with questions.steps(f"hashing the {what} split's shards") as tell:
                split.verify(tell)
        say("data: every shard matches the index")
    _require_theta(folder)
    require_read_only(ports.bucket, ports.pointer, local=folder.table["local"])
    say("bucket: our key writes; the published key reads, and can do nothing else")
    blobs = blobs_of(theta_blobs(folder.path / THETA, folder.theta), data_blobs(folder.data, data, whole=whole))
    with questions.progress("putting up") as tell:
        upload(ports.bucket, blobs, tell)
    say(f"bucket: {len(blobs)} objects, {sum(path.stat().st_size for _, path in blobs):,} bytes")
    if _in_slot(ports) != stood:
        raise ConfigError(
            "the owner's slot has changed since this command began: another machine has published meanwhile. "
            "Nothing was posted. Check it (murmur run show), or run the same command again"
        )
    if named is None:
        spec = _seal(ports, folder, lead)
        block = announce(ports, spec.to_bytes(), lambda: _require_time(ports, spec))
        named = spec.digest
    else:
        spec = _known(folder)
        for document in folder.documents.values():
            put(ports, document)  # the bucket may be a new one
        slot = own_slot(ports)
        block = name(ports, named) if slot is None or slot.pointer != ports.pointer else slot.block
    await_named(ports, named, block)
    say(f"chain: the owner's slot, last written in block {block}, names run {spec.name} ({spec.digest.hex()[:16]})")
    with TemporaryDirectory() as home, questions.progress("reading back") as tell:
        stranger = questions.as_strangers(settings, spec.owner, Path(home))
        for line in read_back(stranger, spec.digest, Path(home), tell, with_data=whole):
            say(f"read back: {line}")
    _say_next(ports, settings, spec, options)
    return 0


def _known(folder: RunFolder) -> RunSpec:
    spec = folder.spec
    if spec is None:
        raise ConfigError(f"{folder.path} has no spec.json, yet its run is on chain: restore that file")
    return spec


def _require_theta(folder: RunFolder) -> None:
    """Raise ConfigError for a theta_0 that does not match the draft, or of another model: no node could start."""
    spec = sealed(folder.table, folder.theta, start_block=1)
    try:
        checkpoint.load(folder.path / THETA, folder.theta, spec.model.shapes())
    except CheckpointCorrupt as fault:
        raise ConfigError(
            f"theta_0 in {folder.path / THETA} is damaged, or {DRAFT} was changed afterwards ({fault}). "
            "Nothing was published: create the run again in another folder"
        ) from None


def _in_slot(ports: Ports) -> Digest | None:
    slot = own_slot(ports)
    return slot.amendment if slot is not None else None


def _named(ports: Ports, settings: OwnerConfig, folder: RunFolder, home: Path, *, replace: bool) -> Digest | None:
    """Return the digest in the owner's slot when it already names this run, or one of its amendments; None when it
    still has to be named. Raises ConfigError when the slot names another run, unless that is to be replaced."""
    slot, spec = own_slot(ports), folder.spec
    if slot is None or slot.amendment is None:
        return None
    if slot.amendment in folder.documents:
        return slot.amendment
    try:
        _, found = reader.open_run(questions.as_strangers(settings, folder.table["owner"], home), home)
        if spec is not None and found.id == spec.digest:
            return slot.amendment
        known = f"run {found.first.name} ({found.id.hex()[:16]})"
    except StorageError:
        if spec is not None and not replace:
            raise  # it may be this run, amended: an owner who cannot read it must not be advised to replace it
        known = f"a run whose bucket does not answer ({slot.amendment.hex()[:16]})"
    except (ConfigError, InvalidMessage):
        known = f"a run that can no longer be read ({slot.amendment.hex()[:16]})"
    if replace:
        return None
    raise ConfigError(
        f"this hotkey's slot names {known}: nodes that join that run, or restart with an empty home, would no "
        "longer find it. Publish with another hotkey, or abandon that run: --replace"
    )


def _lead(folder: RunFolder, wanted: int | None) -> int:
    clock = folder.table["clock"]
    if wanted is None:
        return max(int(clock["round_blocks"]), ceil(START_SECONDS / float(clock["block_seconds"])))
    if not FEWEST_BLOCKS <= wanted < 1 << 20:
        raise ConfigError(
            f"--start-in is {wanted}, expected at least {FEWEST_BLOCKS} blocks: nodes need time to find the run"
        )
    return wanted


def _seal(ports: Ports, folder: RunFolder, lead: int) -> RunSpec:
    """Return the spec with its first block. A spec sealed by an earlier start is kept if there is time left, since it
    may be on its way to the chain."""
    final = ports.chain.finalized().block
    spec = folder.spec
    if spec is None or spec.clock.start_block < final + FEWEST_BLOCKS or not _is_of(spec, folder):
        spec = sealed(folder.table, folder.theta, final + lead)
        subnet_terms.require_fit(Run(spec), 0, ports.chain.subnet(final))
        folder.seal(spec)
    return spec


def _require_time(ports: Ports, spec: RunSpec) -> None:
    """Raise ConfigError when the run would begin before nodes can find it."""
    left = spec.clock.start_block - ports.chain.finalized().block - spec.clock.finality_blocks
    if left < LATEST_BLOCKS:
        raise ConfigError(
            f"the bucket took so long for the spec that round 0 (block {spec.clock.start_block}) would "
            f"{f'begin in {left} blocks' if left > 0 else 'have begun'} before nodes find the run: nothing was posted. "
            "Run the same command again, which chooses another first block; a larger --start-in leaves more time"
        )


def _is_of(spec: RunSpec, folder: RunFolder) -> bool:
    return sealed(folder.table, folder.theta, spec.clock.start_block) == spec


def _say_next(ports: Ports, settings: OwnerConfig, spec: RunSpec, options: Namespace) -> None:
    blocks = spec.clock.start_block - ports.chain.finalized().block
    say()
    if blocks > 0:
        say(
            f"round 0 begins with block {spec.clock.start_block}, in {blocks} blocks "
            f"({duration(blocks * spec.clock.block_seconds)}). A run needs validators from its first round on."
        )
    say("each node needs this in its configuration")
    say(f'  network = "{settings.network}"')
    say(f"  netuid = {settings.netuid}")
    say(f'  owner = "{spec.owner}"')
    say(
        "and starts python neurons/miner.py or neurons/validator.py. To follow the run: murmur run show "
        f"{quote(str(options.folder))}"
    )
