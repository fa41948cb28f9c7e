"""`azureml.monitoring`: rows that an entry script collects itself, as CSV files in the workspace."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.collecting.model_data import model_data
from stoker_azure.collected_rows import (
    CORRELATION_ID,
    CORRELATIONS,
    REQUEST_ID,
    CollectedRows,
    say_nothing_is_collected,
)

__all__ = ["ModelDataCollector"]

_UNSET: Final = "default"
_NAMED_BY_COLLECTION: Final = {"signals", "general"}


class ModelDataCollector:
    """Collects rows of one kind, where the service collects; else its methods do nothing.

    Each row gets the columns `$Timestamp`, `$RequestId` and `$CorrelationId` before its own, so rows of different
    collectors can be joined.
    """

    def __init__(
        self,
        model_name: str,
        designation: str = _UNSET,
        feature_names: Sequence[str] | None = None,
        workspace: str = "default/default/default",
        webservice_name: str = _UNSET,
        model_version: str = _UNSET,
        collection_name: str = _UNSET,
    ) -> None:
        """Describe what is collected.

        Args:
            model_name: The model, for the path.
            designation: What the rows are: `inputs`, `predictions`, `labels`, `signals`, `general` or another word.
            feature_names: Names of the columns; without them those of the data frame that is collected first, else
                numbers from 0.
            workspace: Not used: the workspace is the server's.
            webservice_name: Not used: it is the service that runs the script.
            model_version: The model's version, for the path; without it the one that is served.
            collection_name: What files of `signals` and `general` are called; others are called as the designation.

        Raises:
            TypeError: A name is no text.
        """
        del workspace, webservice_name
        for name in (model_name, designation, *(feature_names or ())):
            if not isinstance(name, str):
                raise TypeError(
                    f"names of models, designations and features are texts, not {type(name).__name__}"
                )
        self._names = None if feature_names is None else [*feature_names]
        self._expected = threading.local()
        self._rows: CollectedRows | None = None
        data = model_data()
        if data is None:
            say_nothing_is_collected("ModelDataCollector")
            return
        version = str(data.version) if model_version == _UNSET else str(model_version)
        collection = collection_name if designation in _NAMED_BY_COLLECTION else designation
        self._rows = CollectedRows(data, model_name, version, designation, collection)

    def collect(self, input_data: Any, user_correlation_id: str = "") -> dict[str, str] | None:
        """Collect rows.

        They are written in the background. Calls of the self-check before serving, and requests that are not
        sampled, are left out.

        Args:
            input_data: A list, numpy array, or data frame of pandas or Spark; else one row of one value. A flat list
                or array is one row if it is as long as the names of the features, else a row for each item.
            user_correlation_id: What this call can be found by; without it a new id.

        Returns:
            What `add_correlations` takes; None if nothing is collected.
        """
        given, self._expected.correlations = getattr(self._expected, "correlations", None), None
        correlations = None if self._rows is None else self._rows.correlations(user_correlation_id)
        if self._rows is None or correlations is None:
            return None
        # Those of an earlier request, which has not come to its second call, are not meant.
        if given is not None and not user_correlation_id and given[REQUEST_ID] == correlations[REQUEST_ID]:
            correlations[CORRELATION_ID] = given[CORRELATION_ID]
        # Rows of one collector have the columns of the first, for a file has one header.
        self._names = self._rows.add(input_data, self._names, correlations) or self._names
        return correlations

    def add_correlations(self, input_data: Any, correlations: Mapping[str, str] | None) -> Any:
        """Give the rows that this collector collects next, on this thread and for this request, the id of others.

        Args:
            input_data: Those rows.
            correlations: What `collect` has returned for the others.

        Returns:
            `input_data`, as it is.
        """
        if correlations is not None:
            self._expected.correlations = {name: str(correlations.get(name, "")) for name in CORRELATIONS}
        return input_data
