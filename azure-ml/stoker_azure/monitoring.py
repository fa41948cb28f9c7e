"""`azureml.monitoring` and `azureml.ai.monitoring`: rows that a script collects, as CSV files in the workspace."""

from __future__ import annotations

import csv
import io
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from stoker.collecting.model_data import ModelData, Series, model_data
from stoker.settings.collection import is_sampled
from stoker.system.logs import SELF_CHECK, current_request_ids

__all__ = [
    "CORRELATIONS",
    "CORRELATION_ID",
    "REQUEST_ID",
    "BasicCorrelationContext",
    "CollectedRows",
    "Collector",
    "CorrelationContext",
    "ModelDataCollector",
    "get_context",
    "report_nothing_collected",
]

logger = logging.getLogger(__name__)

TIMESTAMP, REQUEST_ID, CORRELATION_ID = CORRELATIONS = ("$Timestamp", "$RequestId", "$CorrelationId")
"""Columns before those of the rows."""
_SHOWN: Final = 8
# The setting `collections` has to keep these bodies of requests for a collection to be written.
_BODIES: Final = {
    "inputs": "inputs",
    "predictions": "outputs",
    "model_inputs": "inputs",
    "model_outputs": "outputs",
}


was_reported: Final = threading.Event()
"""Set once the log says that nothing is collected."""


def report_nothing_collected(name: str) -> None:
    """Log once that the service does not collect."""
    if not was_reported.is_set():
        was_reported.set()
        logger.info(
            "%s collects nothing: collecting is off for this service (stoker serve --collect, or collect: true)",
            name,
        )


class CollectedRows:
    """Rows of one kind."""

    def __init__(self, data: ModelData, model: str, version: str, designation: str, collection: str) -> None:
        self._data = data
        self._model, self._version = model, version
        self._designation, self._collection = designation, collection

    def correlations(self, correlation_id: str = "") -> dict[str, str] | None:
        """Return the values of `CORRELATIONS` for rows that are collected now; None in the self-check.

        Args:
            correlation_id: Id of the rows; a new one by default.
        """
        ids = current_request_ids()
        if SELF_CHECK in ids:
            return None
        moment = datetime.fromtimestamp(self._data.clock_s(), UTC)
        return {
            TIMESTAMP: moment.isoformat(timespec="milliseconds"),
            REQUEST_ID: " ".join(request_id.decode("latin-1") for request_id in ids),
            CORRELATION_ID: correlation_id or uuid.uuid4().hex,
        }

    def add(
        self, collected: Any, names: Sequence[str] | None, correlations: Mapping[str, str]
    ) -> list[str] | None:
        """Queue rows for writing, unless the settings leave them out.

        Args:
            names: Names of its columns, if they are known.

        Returns:
            The names of the columns; None if nothing is written.
        """
        kept, ids = _BODIES.get(self._designation), current_request_ids()
        settings = self._data.settings
        if kept is not None and kept not in settings.collections:
            return None
        if ids and not is_sampled(ids[0], settings.sample_rate):
            return None
        try:
            columns, rows = _table(collected, None if names is None else [*names])
        except ValueError as error:
            # The request is answered all the same.
            self._data.warn(str(error))
            return None
        if not rows:
            return None
        header = _lines([[*CORRELATIONS, *columns]])
        series = Series(self._model, self._version, self._designation, self._collection, header)
        first = [*correlations.values()]
        self._data.enqueue(series, self._data.clock_s(), _lines([*first, *row] for row in rows))
        return columns


def _table(data: Any, names: list[str] | None) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the columns, and rows of as many values.

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
                f"a row that a script collects has {len(row)} values, and there are {len(names)} columns "
                f"({', '.join(names[:_SHOWN])})"
            )
    return names, rows


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | dict) or hasattr(value, "tolist")


def _flat(value: Any) -> Iterable[Any]:
    """Yield the values of a row, which may have more dimensions."""
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


_UNSET: Final = "default"
_NAMED_BY_COLLECTION: Final = {"signals", "general"}


class ModelDataCollector:
    """Collects rows of one kind; if the service does not collect, its methods do nothing.

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
            report_nothing_collected("ModelDataCollector")
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
            user_correlation_id: Id of this call; a new one by default.

        Returns:
            The argument for `add_correlations`; None if nothing is collected.
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
        """Give other rows' id to the rows that this collector collects next, on this thread and for this request.

        Args:
            input_data: Those rows.
            correlations: What `collect` has returned for the others.

        Returns:
            `input_data`, as it is.
        """
        if correlations is not None:
            self._expected.correlations = {name: str(correlations.get(name, "")) for name in CORRELATIONS}
        return input_data


class CorrelationContext:
    """Return the common class of rows; scripts may define their own classes."""

    def get_id(self) -> str:
        """Return the id of the rows."""
        return ""

    def __str__(self) -> str:
        return self.get_id()

    __repr__ = __str__


class BasicCorrelationContext(CorrelationContext):
    """An id with a time and headers.

    Args:
        id: The id; a new one if it is empty.
        timestamp: Seconds since 1970; now by default.
        headers: Kept, and not collected.
    """

    def __init__(
        self,
        id: str | None = None,  # noqa: A002  # Azure's name
        timestamp: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = str(id) if id else str(uuid.uuid4())
        self.timestamp = timestamp or int(time.time())
        self.headers = dict(headers or {})

    def get_id(self) -> str:
        """Return the id of the rows."""
        return self.id

    def get_timestamp(self) -> int:
        """Return seconds since 1970."""
        return self.timestamp

    def get_headers(self) -> dict[str, Any]:
        """Return the headers."""
        return self.headers


def get_context() -> CorrelationContext:
    """Return a new context."""
    return BasicCorrelationContext()


class Collector:
    """Collects data frames of one kind; if the service does not collect, it does nothing.

    Attributes:
        name: What they are: `model_inputs`, `model_outputs` or another word.
    """

    def __init__(self, *, name: str, on_error: Callable[[Exception], Any] | None = None) -> None:
        """Describe what is collected.

        Args:
            on_error: Called with errors, which are raised by default.

        Raises:
            ValueError: The name is empty or no text.
        """
        self.name = name
        self._on_error = on_error or _raise
        self._rows: CollectedRows | None = None
        data = model_data()
        if not isinstance(name, str) or not name:
            self._on_error(ValueError("a Collector needs a name, such as model_inputs"))
        elif data is None:
            report_nothing_collected("Collector")
        else:
            self._rows = CollectedRows(data, data.name, str(data.version), name, name)

    def collect(self, data: Any, correlation_context: CorrelationContext | None = None) -> CorrelationContext:
        """Collect the rows of a data frame; they are written in the background.

        Calls of the self-check before serving, and requests that are not sampled, are left out.

        Args:
            correlation_context: Context of the rows; a new one by default.

        Returns:
            The context, for the rows that belong to these.

        Raises:
            TypeError: That is no data frame, and there is no `on_error`.
        """
        context = correlation_context or get_context()
        if not (hasattr(data, "columns") and hasattr(data, "itertuples")):
            self._on_error(
                TypeError(f"Collector.collect takes data frames of pandas, not {type(data).__name__}")
            )
            return context
        correlations = None if self._rows is None else self._rows.correlations(context.get_id())
        if self._rows is not None and correlations is not None:
            self._rows.add(data, None, correlations)
        return context


def _raise(error: Exception) -> None:
    raise error
