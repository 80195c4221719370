from tests.network import data_folder, networks
from tests.owner.world import clean, made, world

__all__ = ["clean", "data_folder", "made", "networks", "world"]
