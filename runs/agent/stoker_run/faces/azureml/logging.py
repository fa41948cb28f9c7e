"""`azureml.logging` of Workbench in a run of Stoker: `get_azureml_logger().log(name, value)`."""

from typing import Any

from stoker_run.current_run import current

__all__ = ["AzureMLLogger", "data_collection_state", "get_azureml_logger"]


class AzureMLLogger:
    """Logs numbers, texts, lists and dicts; dicts become rows."""

    def __init__(self) -> None:
        self._run = current()

    def log(self, name: str, value: Any, *_others: Any, **_more: Any) -> None:
        """Log a value of any of these kinds."""
        if isinstance(value, dict):
            self._run.log_row(name, **{str(key): one for key, one in value.items()})
        elif isinstance(value, (list, tuple)) or getattr(value, "ndim", False):
            self._run.log_list(name, value)
        else:
            self._run.log(name, value)


def get_azureml_logger() -> AzureMLLogger:
    """The logger of this process's run; outside of a run it prints."""
    return AzureMLLogger()


def data_collection_state(*_arguments: Any, **_keywords: Any) -> bool:
    """Return whether data is sent to Microsoft: never."""
    return False
