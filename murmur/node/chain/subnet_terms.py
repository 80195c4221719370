"""The chain's terms for a node: posting quota and rate limit against the run's clock, and money for fees.

The owner of a subnet, or root, may change all of these at any time. A spec is planned for its own clock. A node
therefore does not start on a chain where the run cannot work, and warns when the chain's terms change.
"""

from dataclasses import fields, replace

from loguru import logger

from murmur.node.telemetry.events import Events
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.ports import Chain
from murmur.protocol.run import Run
from murmur.protocol.spec import ROUND_POST_BYTES
from murmur.protocol.types import MAX_UIDS, Subnet

LOW_BALANCE_RAO = 50_000_000
"""0.05 TAO: fees of some hundred posts. A chain may charge none, so less is no fault."""
RAO_PER_TAO = 10**9


def misfits(run: Run, round: int, subnet: Subnet) -> list[str]:
    """Return why the run cannot work on this chain from `round` on, each reason with numbers and remedy; [] when it
    can."""
    spec = run.spec_at(round)
    length, found = spec.clock.round_blocks, []
    carried = subnet.post_bytes // ROUND_POST_BYTES
    if carried == 0:
        found.append(
            f"a hotkey may post {subnet.post_bytes} bytes an epoch (Commitments.MaxSpace), but one round takes "
            f"up to {ROUND_POST_BYTES}: the chain's governance has to raise it"
        )
    elif subnet.tempo > carried * length:
        found.append(
            f"the subnet's tempo is {subnet.tempo} blocks, and the {subnet.post_bytes} bytes that a hotkey may post in "
            f"that time carry {carried} rounds of {length} blocks: the subnet's owner has to lower the tempo to at "
            f"most {carried * length}, or the run needs rounds of at least {-(-subnet.tempo // carried)} blocks"
        )
    if subnet.max_uids > MAX_UIDS:
        found.append(
            f"{subnet.max_uids} hotkeys may be registered (MaxAllowedUids), but a vote has bits for "
            f"{MAX_UIDS}: the subnet's owner has to lower it"
        )
    if subnet.mechanisms != 1:
        found.append(
            f"the subnet has {subnet.mechanisms} mechanisms (MechanismCountCurrent), but a run sets the "
            "weights of only one, so another would pay independently of the run. The subnet's owner has to "
            "set one"
        )
    pay = spec.gauntlet.weight_rounds * length
    if subnet.weights_rate_limit > pay:
        found.append(
            f"the chain takes a validator's weights once in {subnet.weights_rate_limit} blocks (WeightsSetRateLimit), "
            f"but the run pays every {pay}: its owner has to publish an amendment that sets gauntlet.weight_rounds to "
            f"at least {-(-subnet.weights_rate_limit // length)}"
        )
    return found


def require_fit(run: Run, round: int, subnet: Subnet) -> None:
    """Raise ConfigError when the run cannot work on this chain."""
    if found := misfits(run, round, subnet):
        raise ConfigError(
            f"run {run.first.name} cannot work with this subnet's present settings. Start again when they have "
            "changed:\n  " + "\n  ".join(found)
        )


def _changes(before: Subnet, after: Subnet) -> str:
    """Return what differs, with both values."""
    pairs = [(each.name, getattr(before, each.name), getattr(after, each.name)) for each in fields(Subnet)]
    return ", ".join(f"{name} {was} is now {now}" for name, was, now in pairs if was != now)


class SubnetTerms:
    """The chain's terms when a running node last read them."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._seen: Subnet | None = None

    def look(self, chain: Chain, run: Run, round: int) -> None:
        """Log and emit a change once, with whether the run can continue under it. If the chain does not answer, it is
        asked again in the next round."""
        try:
            subnet = chain.subnet(chain.finalized().block)
        except ChainError as fault:
            logger.debug("round {round}: cannot read the subnet's settings: {fault}", round=round, fault=str(fault))
            return
        settings = replace(subnet, owner=None)  # the subnet's owner does not matter to us
        seen, self._seen = self._seen, settings
        found = misfits(run, round, subnet)
        if seen == settings or (seen is None and not found):
            return
        self._events.emit(
            "subnet_changed",
            round,
            tempo=subnet.tempo,
            post_bytes=subnet.post_bytes,
            weights_rate_limit=subnet.weights_rate_limit,
            commit_reveal=subnet.commit_reveal,
            misfits=found,
        )
        logger.warning(
            "round {round}: the subnet's settings {changed}. {verdict}",
            round=round,
            changed="do not fit this run" if seen is None else f"have changed: {_changes(seen, settings)}",
            verdict="; ".join(found) or "The run continues with them",
        )
