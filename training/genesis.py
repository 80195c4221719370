"""What the owner of a run publishes as theta_0: the parameters, and the norms with which the run begins.

The first round's norms cannot be judged by what the first miners send, because a majority of hotkeys costs little: so
the owner does one honest round beforehand, and theta_0's checkpoint holds its norms as the slow averages.
"""

from protocol.assignment import page_at
from sparseloco.outer import OuterState
from training.checkpoint import Saved
from training.inner import OnStep
from training.loader import sequences
from training.replica import Replica
from training.shards import Shards


def genesis_state(replica: Replica, data: Shards, on_step: OnStep | None = None) -> Saved:
    """The state to publish for a fresh `replica` at theta_0: no round yet, the slow averages those of one inner round
    on pages spread evenly over the run's; none for the int8 exchange. The replica may have trained afterwards and is of
    no further use."""
    spec = replica.spec
    if spec.exchange == "int8":
        return replica.consensus_state()  # its outer step knows no norms
    count = spec.pages_per_round
    numbers = (spec.inner.first_page + place * spec.num_pages // count for place in range(count))
    pages = [page_at(number, spec.page_tokens) for number in numbers]
    replica.inner_round(sequences(data.train, pages, spec.model.context), on_step=on_step)
    norms = replica.compress().norms
    replica.outer = OuterState(0, norms.tensors, norms.whole)
    return replica.consensus_state()
