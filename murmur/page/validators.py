"""The validators of one round in comparison: each one's vote, report and pay, as far as known."""

from typing import Any

from murmur.page.round import Round
from murmur.page.rounds import Rounds


def validators(rounds: Rounds, number: int) -> list[dict[str, Any]]:
    """Return a row for each validator that any round mentions: by stake, highest first, then by name. None means
    unknown for this round.

    - `vote`: `names` or `abstains`. `theta`: the state that it holds at the start of the round.
    - `named`: how many peers it names. `peers`: which, where that was read from the chain.
    - `first`: the contributors by its own order.
    - `voted_in`, `set_in`: blocks of its vote and its weights. `not_set`: why its weights do not count.
    - `last_round`, `last_time`: of its last vote or report in any round.
    """
    one = rounds.get(number)
    if one is None:
        return []
    rows = [_row(rounds, one, node) for node in sorted({*rounds.last_seen, *one.unread})]
    return sorted(rows, key=lambda row: -(row["stake"] or 0.0))


def _row(rounds: Rounds, one: Round, node: str) -> dict[str, Any]:
    vote = one.votes.get(node)
    held = vote.theta if vote is not None and vote.theta is not None else _held(rounds, one, node)
    seen = rounds.last_seen.get(node, (None, None))
    stake = vote.stake if vote is not None and vote.stake is not None else one.stakes.get(node)
    return {
        "validator": node,
        "stake": round(stake, 4) if stake is not None else None,
        "vote": None if vote is None else "abstains" if vote.abstains else "names",
        "theta": held if vote is not None and not vote.abstains else None,
        "named": vote.named if vote is not None and not vote.abstains else None,
        "peers": vote.peers if vote is not None else None,
        "first": one.first.get(node),
        "voted_in": vote.block if vote is not None else None,
        "reported": node in one.pay,
        "unread": one.unread.get(node),
        "unobserved": one.unobserved.get(node),
        "set_in": one.set_in.get(node),
        "not_set": one.not_set.get(node),
        "last_round": seen[0],
        "last_time": seen[1],
    }


def _held(rounds: Rounds, one: Round, node: str) -> str | None:
    """Return the model that one of our nodes held when the round began: the result of the previous round."""
    before = rounds.get(one.number - 1)
    return before.theta.get(node) if before is not None else None
