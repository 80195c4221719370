"""The state that a run's owner publishes as theta_0: the parameters and the initial norms.

The first miners' payloads cannot set the first round's norms, because a majority of hotkeys is cheap. So the owner
makes one honest round beforehand, and theta_0's checkpoint holds its norms as the slow averages.
"""

from murmur.data.shards import Shards
from murmur.protocol.assignment import page_at
from murmur.training.checkpoint import TensorState
from murmur.training.inner import OnStep
from murmur.training.loader import sequences
from murmur.training.replica import Replica
from sparseloco.outer import OuterState


def genesis_state(replica: Replica, data: Shards, on_step: OnStep | None = None) -> TensorState:
    """Return the state to publish for a fresh `replica` at theta_0.

    It counts no round yet. The slow averages are those of one inner round on pages spread evenly over the run's; the
    int8 exchange has none. The replica may have trained afterwards and must not be used again.
    """
    spec = replica.spec
    if spec.exchange == "int8":
        return replica.consensus_state()  # its outer step uses no norms
    count = spec.pages_per_round
    numbers = (spec.inner.first_page + place * spec.num_pages // count for place in range(count))
    pages = [page_at(number, spec.page_tokens) for number in numbers]
    replica.inner_round(sequences(data.train, pages, spec.model.context), on_step=on_step)
    norms = replica.compress().norms
    replica.outer = OuterState(0, norms.tensors, norms.whole)
    return replica.consensus_state()
