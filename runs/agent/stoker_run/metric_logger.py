"""The methods of a run that log metrics: they check the values, and the run keeps or prints them."""

from pathlib import Path
from types import GeneratorType
from typing import Any, Dict, Optional

from stoker_run.exceptions import UserErrorException


class MetricLogger:
    """Checks the values of metrics, and hands them to the methods that keep them."""

    def log(self, name: str, value: Any, description: str = "", step: Optional[int] = None) -> None:
        """Log one value: a number, a boolean, a text, or a scalar of numpy or a framework.

        Args:
            name: Of the metric; logging it again makes it a list.
            value: The value. Anything else becomes its `repr`.

        Raises:
            UserErrorException: The value is a list.
        """
        if isinstance(value, (list, tuple, range, GeneratorType)):
            raise UserErrorException("run.log takes one value; use run.log_list for several")
        self._log_value(name, value, step, description)

    def log_list(self, name: str, value: Any, description: str = "") -> None:
        """Log a list of values."""
        self._log_structure(name, "list", list(value), description)

    def log_row(self, name: str, description: Optional[str] = None, **kwargs: Any) -> None:
        """Log a row: each keyword is a column. Rows of one name make a table."""
        self._log_structure(name, "row", kwargs, description)

    def log_table(self, name: str, value: Dict[str, Any], description: str = "") -> None:
        """Log a table: a dict of columns, each a value or a list."""
        self._log_structure(name, "table", value, description)

    def log_confusion_matrix(self, name: str, value: Any, description: str = "") -> None:
        """Log a confusion matrix, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "confusion_matrix", value, description)

    def log_accuracy_table(self, name: str, value: Any, description: str = "") -> None:
        """Log an accuracy table, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "accuracy_table", value, description)

    def log_residuals(self, name: str, value: Any, description: str = "") -> None:
        """Log residuals, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "residuals", value, description)

    def log_predictions(self, name: str, value: Any, description: str = "") -> None:
        """Log predictions, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "predictions", value, description)

    def log_image(
        self, name: str, path: Optional[str] = None, plot: Any = None, description: str = ""
    ) -> None:
        """Log an image.

        Args:
            path: A file; exactly one of it and `plot`.
            plot: matplotlib's `pyplot` or a figure of it.

        Raises:
            UserErrorException: Both or none are given, or there is no such file.
        """
        if (path is None) == (plot is None):
            raise UserErrorException("run.log_image takes either a path or a plot")
        if path is not None and not Path(path).is_file():
            raise UserErrorException(f"run.log_image: there is no file {path}")
        self._log_image(name, path, plot, description)

    def _log_value(self, name: str, value: Any, step: Optional[int], description: str) -> None:
        raise NotImplementedError

    def _log_structure(self, name: str, kind: str, value: Any, description: Optional[str]) -> None:
        raise NotImplementedError

    def _log_image(self, name: str, path: Optional[str], plot: Any, description: str) -> None:
        raise NotImplementedError
