"""`azureml.monitoring`: rows that an entry script collects itself, as CSV files in the workspace."""

from __future__ import annotations

import csv
import io
import logging
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from stoker.collection import is_sampled
from stoker.scripts.model_data import ModelData, Series, model_data
from stoker.scripts.request_log import SELF_CHECK, current_request_ids

__all__ = ["ModelDataCollector"]

logger = logging.getLogger(__name__)

_TIMESTAMP, _REQUEST_ID, _CORRELATION_ID = _CORRELATIONS = ("$Timestamp", "$RequestId", "$CorrelationId")
_UNSET: Final = "default"
_SHOWN: Final = 8
_NAMED_BY_COLLECTION: Final = {"signals", "general"}
# Which bodies of requests the setting `collections` would have to keep for these to be collected.
_BODIES: Final = {"inputs": "inputs", "predictions": "outputs"}


class _Told:
    """Whether the log says already that nothing is collected."""

    once = False


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
        self._data = model_data()
        self._model, self._designation = model_name, designation
        self._names = None if feature_names is None else [*feature_names]
        self._version = str(model_version)
        if self._data is not None and self._version == _UNSET:
            self._version = str(self._data.version)
        self._collection = collection_name if designation in _NAMED_BY_COLLECTION else designation
        self._expected = threading.local()
        if self._data is None and not _Told.once:
            _Told.once = True
            logger.info(
                "ModelDataCollector collects nothing: collecting is off for this service (stoker serve --collect, "
                "or collect: true)"
            )

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
        data = self._data
        ids = current_request_ids()
        given, self._expected.correlations = getattr(self._expected, "correlations", None), None
        if data is None or SELF_CHECK in ids:
            return None
        now_s = data.clock_s()
        correlations = {
            _TIMESTAMP: datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
            _REQUEST_ID: " ".join(request_id.decode("latin-1") for request_id in ids),
            _CORRELATION_ID: user_correlation_id or uuid.uuid4().hex,
        }
        # Those of an earlier request, which has not come to its second call, are not meant.
        if given is not None and not user_correlation_id and given[_REQUEST_ID] == correlations[_REQUEST_ID]:
            correlations[_CORRELATION_ID] = given[_CORRELATION_ID]
        kept = _BODIES.get(self._designation)
        if kept is not None and kept not in data.settings.collections:
            return correlations
        if not ids or is_sampled(ids[0], data.settings.sample_rate):
            self._offer(data, now_s, input_data, [*correlations.values()])
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
            self._expected.correlations = {name: str(correlations.get(name, "")) for name in _CORRELATIONS}
        return input_data

    def _offer(self, data: ModelData, now_s: float, collected: Any, first_columns: list[str]) -> None:
        try:
            names, rows = _table(collected, self._names)
        except ValueError as error:
            # Whoever is scored is not to suffer from it.
            data.warn(str(error))
            return
        if not rows:
            return
        # Rows of one collector have the columns of the first, for a file has one header.
        self._names = names
        header = _lines([[*_CORRELATIONS, *names]])
        series = Series(self._model, self._version, self._designation, self._collection, header)
        data.offer(series, now_s, _lines([*first_columns, *row] for row in rows))


def _table(data: Any, names: list[str] | None) -> tuple[list[str], list[list[Any]]]:
    """The names of the columns, and rows of as many values.

    Raises:
        ValueError: The rows have another number of columns.
    """
    if hasattr(data, "columns"):
        names = names or [str(column) for column in data.columns]
        # A data frame of pandas, else one of Spark.
        found = data.itertuples(index=False) if hasattr(data, "itertuples") else data.collect()
    else:
        found = data.tolist() if hasattr(data, "tolist") else data
        if not isinstance(found, list | tuple):
            found = [found]
        if names is not None and len(found) == len(names) and not any(map(_is_row, found)):
            found = [found]
    found = list(found)
    if found and all(isinstance(row, dict) for row in found):
        names = names or [str(name) for name in found[0]]
        found = [[row.get(name) for name in names] for row in found]
    rows: list[list[Any]] = [list(_flat(row)) for row in found]
    names = names or [str(number) for number in range(len(rows[0]) if rows else 0)]
    for row in rows:
        if len(row) != len(names):
            raise ValueError(
                f"a row has {len(row)} values, and ModelDataCollector {len(names)} columns "
                f"({', '.join(names[:_SHOWN])})"
            )
    return names, rows


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | dict) or hasattr(value, "tolist")


def _flat(value: Any) -> Iterable[Any]:
    """The values of a row, also of one with more dimensions."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    # JSON can hold halves of characters, which UTF-8 cannot.
    return text.getvalue().encode(errors="backslashreplace")
