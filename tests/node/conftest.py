from tests.network import data_folder, networks
from tests.node.lies import forger

__all__ = ["data_folder", "forger", "networks"]
