"""The simulation's chain is the tests' fake of the Chain port."""

from simulation.signer import HashSigner as FakeSigner
from simulation.signer import hash_verify as fake_verify
from simulation.world import World as FakeWorld
from simulation.world import WorldChain as FakeChain

__all__ = ["FakeChain", "FakeSigner", "FakeWorld", "fake_verify"]
