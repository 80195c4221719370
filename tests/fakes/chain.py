"""The simulation's chain is the tests' fake of the Chain port."""

from murmur.lab.simulation.signer import HashSigner as FakeSigner
from murmur.lab.simulation.signer import hash_verify as fake_verify
from murmur.lab.simulation.world import World as FakeWorld
from murmur.lab.simulation.world import WorldChain as FakeChain

__all__ = ["FakeChain", "FakeSigner", "FakeWorld", "fake_verify"]
