"""The simulation's chain is the tests' fake of the Chain port."""

from simulation.world import HashSigner as FakeSigner
from simulation.world import World as FakeWorld
from simulation.world import WorldChain as FakeChain
from simulation.world import hash_verify as fake_verify

__all__ = ["FakeChain", "FakeSigner", "FakeWorld", "fake_verify"]
