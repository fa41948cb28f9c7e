"""`azureml.train.automl`: scripts import it so that pickles find their classes; there is nothing of it here."""

from __future__ import annotations

__all__: list[str] = []


def __getattr__(name: str) -> object:
    """Say what becomes of the names that only code for training has."""
    if name.startswith("AutoML"):
        raise ImportError(
            f"azureml.train.automl.{name} is for training on Azure, and Stoker serves models: take it out of the "
            "script, or install azureml-train-automl-client",
            name="azureml.train.automl",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
