"""The simulation's store is the tests' fake of the Bucket port."""

from simulation.store import Call, Faults, _Object
from simulation.store import Store as FakeStore
from simulation.store import StoreBucket as FakeBucket
from simulation.store import StoreParts as FakeParts

__all__ = ["Call", "FakeBucket", "FakeParts", "FakeStore", "Faults", "_Object"]
