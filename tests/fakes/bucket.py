"""The simulation's store is the tests' fake of the Bucket port."""

from murmur.lab.simulation.store import Call, Faults, _Object
from murmur.lab.simulation.store import Store as FakeStore
from murmur.lab.simulation.store import StoreBucket as FakeBucket
from murmur.lab.simulation.store import StoreParts as FakeParts

__all__ = ["Call", "FakeBucket", "FakeParts", "FakeStore", "Faults", "_Object"]
