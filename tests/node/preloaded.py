"""What the server of forked children computes once (tests/forked.py): the network that never stopped."""

from tests.node.played_rounds import network, other

network()
other()
