"""Rows that a script collects, whichever class of Azure's it does that with: CSV files in the workspace."""

from __future__ import annotations

import csv
import io
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from stoker.collecting.collection import is_sampled
from stoker.collecting.model_data import ModelData, Series
from stoker.system.logs import SELF_CHECK, current_request_ids

__all__ = ["CORRELATIONS", "CORRELATION_ID", "REQUEST_ID", "CollectedRows", "say_nothing_is_collected"]

logger = logging.getLogger(__name__)

TIMESTAMP, REQUEST_ID, CORRELATION_ID = CORRELATIONS = ("$Timestamp", "$RequestId", "$CorrelationId")
"""Columns before those of the rows."""
_SHOWN: Final = 8
# Which bodies of requests the setting `collections` would have to keep for these to be collected.
_BODIES: Final = {
    "inputs": "inputs",
    "predictions": "outputs",
    "model_inputs": "inputs",
    "model_outputs": "outputs",
}


class _Told:
    """Whether the log says already that nothing is collected."""

    once = False


def say_nothing_is_collected(name: str) -> None:
    """Say once that the service does not collect.

    Args:
        name: The class whose methods do nothing.
    """
    if not _Told.once:
        _Told.once = True
        logger.info(
            "%s collects nothing: collecting is off for this service (stoker serve --collect, or collect: true)",
            name,
        )


class CollectedRows:
    """Rows of one kind.

    Args:
        data: Where they go.
        model: Name of the model, for the path.
        version: Its version, for the path.
        designation: What they are, for the path.
        collection: What their files are called.
    """

    def __init__(self, data: ModelData, model: str, version: str, designation: str, collection: str) -> None:
        self._data = data
        self._model, self._version = model, version
        self._designation, self._collection = designation, collection

    def correlations(self, correlation_id: str = "") -> dict[str, str] | None:
        """Return what rows that are collected now have in `CORRELATIONS`; None in the self-check.

        Args:
            correlation_id: What they can be found by; without it a new id.
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
        """Have rows written, unless the settings leave them out.

        Args:
            collected: What a script has collected.
            names: Names of its columns, if they are known.
            correlations: What `correlations` gave.

        Returns:
            The names of the columns; None where nothing is written.
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
            # Whoever is scored is not to suffer from it.
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
                f"a row that a script collects has {len(row)} values, and there are {len(names)} columns "
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
