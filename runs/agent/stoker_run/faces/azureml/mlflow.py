"""`azureml.mlflow`: in a run of Stoker what MLflow logs goes to the run without it."""

from typing import Any

__all__ = ["get_portal_url"]


def get_portal_url(run: Any) -> str:
    """The URI of a run's folder."""
    return str(run.get_portal_url())
