from tests.network import data_folder, networks

__all__ = ["data_folder", "networks"]
