"""The entry script of models in MLflow's format. Imports search the folder of a script, so it has its own."""
