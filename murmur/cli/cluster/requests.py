"""`murmur cluster drain`, `amend`, `close` and `rotate`: requests to a run from a holder of its token."""

import secrets
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from murmur import files
from murmur.cli.run.amend import changes_of
from murmur.cli.run.questions import agreed_to, say
from murmur.cluster.amendments import AmendedSpec
from murmur.cluster.bootstrap import member_id, open_ledger
from murmur.cluster.creation import place, require_store
from murmur.cluster.group_keys import parse_token, read_token
from murmur.cluster.ledger import Ledger
from murmur.protocol import keys
from murmur.protocol.cluster import Amendment, ClusterSpec, Drain, amended
from murmur.protocol.errors import AccessDenied, ConfigError
from murmur.protocol.types import DIGEST_BYTES, PeerId


def drain(options: Namespace) -> int:
    """Ask one member to leave after its round."""
    ledger, spec = open_ledger(parse_token(read_token(options.token_file)))
    member = member_id(ledger.run, options.name)
    beats = {one: beat for one, beat in ledger.beats().items() if not beat.leaving}
    if member not in beats:
        there = ", ".join(sorted(beat.name for beat in beats.values())) or "nobody"
        raise ConfigError(f"{spec.name} has no member {options.name}: its members are {there}")
    ledger.drain(member, Drain(request=secrets.token_hex(8)))
    round = beats[member].round
    say(f"{options.name}, last seen in round {round}, leaves when its round is over. Its process then ends")
    return 0


def amend(options: Namespace) -> int:
    """Change settings of the run from a round on that no member has begun."""
    changes = changes_of(options.changes)
    if not changes:
        raise ConfigError("an amendment needs at least one --set TABLE.FIELD=VALUE, such as inner.peak_lr=1e-4")
    ledger, spec = open_ledger(parse_token(read_token(options.token_file)))
    before = standing(ledger, spec).spec
    amendment = _amendment(changes)
    after = amended(before, amendment)
    for table, fields in changes.items():
        for field in fields:
            old, new = (getattr(getattr(one, table), field) for one in (before, after))
            say(f"{table}.{field}: {old} -> {new}")
    _create(ledger, spec, amendment)
    say("it applies to every member from the round after the next record")
    return 0


def close(options: Namespace) -> int:
    """Make the next record the last one."""
    ledger, spec = open_ledger(parse_token(read_token(options.token_file)))
    standing(ledger, spec)
    if not agreed_to(f"end {spec.name} for good? All members stop after the next record", yes=options.yes):
        say("nothing was written")
        return 0
    _create(ledger, spec, Amendment(last=True))
    say(
        "the last round is the current one, or the one after it. Then all members end, and one of them uploads "
        "the last theta"
    )
    return 0


def rotate(options: Namespace, secret_key: str) -> int:
    """Replace the token in the owner's folder by one with another key of the bucket."""
    path = Path(f"{options.name}.token")
    old = parse_token(read_token(path))
    new = place(old.endpoint, old.bucket, options.access_key, secret_key, local=old.local)
    token = new.model_copy(update={"run": old.run, "secret": old.secret})
    if token == old:
        raise ConfigError("the new key is the token's present key: create another key at the store first")
    try:
        ledger, _ = open_ledger(token)
        ledger.rounds()
        ledger.rounds()  # some servers deny a missing object to a key that may not list
        require_store(ledger.part(PeerId(secrets.token_bytes(DIGEST_BYTES))))
    except AccessDenied as fault:
        raise ConfigError(
            f"the new key may not do all that members need ({fault}): to list, read, write and delete in the whole "
            f"bucket. {path} is unchanged"
        ) from None
    replace_token(path, token.encode())
    say(
        f"{path} has the new key. Give it to every member, and restart each member with it: the others do not wait "
        "meanwhile"
    )
    say(
        "when all members are back (murmur cluster status), revoke the old key at the store: until then the old "
        "token still works"
    )
    return 0


def standing(ledger: Ledger, spec: ClusterSpec) -> AmendedSpec:
    """Return the spec with all amendments, in force or to come. Raises ConfigError where the run is closed, and
    StorageError where the store has lost one that is in force."""
    rounds = ledger.rounds()
    record = ledger.record(rounds - 1) if rounds else None
    now = AmendedSpec(spec, ledger).at(record.amendments if record is not None else 0)
    now = now.coming(ledger.amendment)
    if now.closed:
        raise ConfigError(f"{spec.name} is closed: it cannot be changed any more")
    return now


def _create(ledger: Ledger, spec: ClusterSpec, amendment: Amendment) -> None:
    now = standing(ledger, spec)
    now.next(amendment)  # somebody may have amended it since we looked: both together have to be valid
    number = now.count + 1
    if not ledger.amend(number, amendment):
        there = ledger.amendment(number)
        if there is None or not _valid(now, there):
            raise ConfigError(
                f"{keys.amendment(ledger.run, number)} is no amendment that this release can follow: a newer release "
                "wrote it, it was not checked, or the store has damaged it. Members ignore it. Delete this object, and "
                "try again"
            )
        raise ConfigError(
            f"amendment {number} exists already: somebody else amended the run meanwhile. Nothing was written: "
            "check the current settings (murmur cluster status), and try again"
        )


def _valid(now: AmendedSpec, amendment: Amendment) -> bool:
    try:
        now.next(amendment)
    except ConfigError:
        return False
    return True


def _amendment(changes: Mapping[str, Mapping[str, Any]]) -> Amendment:
    if unknown := set(changes) - {"inner", "outer", "cluster"}:
        raise ConfigError(f"an amendment can change inner, outer and cluster, not {', '.join(sorted(unknown))}")
    return Amendment.model_validate({"changes": changes})


def replace_token(path: Path, line: str) -> None:
    """Write a token whole or not at all, readable by its owner only."""
    files.write(path, f"{line}\n".encode(), mode=0o600)
