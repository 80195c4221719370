from tests.training.conftest import data, data_folder, inner_spec, model_spec, run_spec

__all__ = ["data", "data_folder", "inner_spec", "model_spec", "run_spec"]
