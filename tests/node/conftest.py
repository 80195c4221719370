from tests.network import data_folder, networks
from tests.node.doctor_world import world
from tests.node.lies import forger

__all__ = ["data_folder", "forger", "networks", "world"]
