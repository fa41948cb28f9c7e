"""What a script may know of what its run belongs to: the workspace, the experiment, inputs, models."""

from typing import Any, Dict, Mapping

from stoker_run.exceptions import NotOffered

__all__ = ["Experiment", "Inputs", "RegisteredLater", "WorkspaceOfRun"]


class WorkspaceOfRun:
    """What a script may know of its workspace."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.name = variables.get("AZUREML_ARM_WORKSPACE_NAME", "local")
        self.subscription_id = variables.get("AZUREML_ARM_SUBSCRIPTION", "")
        self.resource_group = variables.get("AZUREML_ARM_RESOURCEGROUP", "local")

    def __getattr__(self, name: str) -> Any:
        """Everything else is with the code that has submitted the run."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOffered(
            f"workspace.{name} is not offered in a script: pass data as an input, and register models by "
            "run.register_model or in the code that submits the run"
        )


class Experiment:
    """The experiment of a run."""

    def __init__(self, name: str, workspace: WorkspaceOfRun) -> None:
        self.name = name
        self.workspace = workspace


class Inputs(Dict[str, str]):
    """Paths of the run's inputs by their names."""

    def __missing__(self, name: str) -> str:
        raise KeyError(f"the run has no input {name!r}; it has: {', '.join(self) or 'none'}")


class RegisteredLater:
    """A model that is registered when the script has ended.

    Attributes:
        name: Its name.
        model_path: Which of the run's files it is of.
    """

    version = None

    def __init__(self, name: str, model_path: str) -> None:
        self.name = name
        self.model_path = model_path
