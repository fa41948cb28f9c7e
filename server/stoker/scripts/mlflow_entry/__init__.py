"""The entry script of models in MLflow's format: a folder of its own, for it becomes a place of imports."""
