"""`azureml.ai.monitoring`: data frames that an entry script collects itself, as managed online endpoints have it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stoker.collecting.model_data import model_data
from stoker_azure.collected_rows import CollectedRows, say_nothing_is_collected

__all__ = ["BasicCorrelationContext", "Collector", "CorrelationContext", "get_context"]


# `azureml.ai.monitoring.context`: what joins the rows of several collectors.


class CorrelationContext:
    """What rows have in common; scripts may have classes of their own."""

    def get_id(self) -> str:
        """The id that the rows get."""
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
        """The id that the rows get."""
        return self.id

    def get_timestamp(self) -> int:
        """Seconds since 1970."""
        return self.timestamp

    def get_headers(self) -> dict[str, Any]:
        """The headers."""
        return self.headers


def get_context() -> CorrelationContext:
    """A new context."""
    return BasicCorrelationContext()


class Collector:
    """Collects data frames of one kind, where the service collects; else it does nothing.

    Attributes:
        name: What they are: `model_inputs`, `model_outputs` or another word.
    """

    def __init__(self, *, name: str, on_error: Callable[[Exception], Any] | None = None) -> None:
        """Describe what is collected.

        Args:
            name: As above.
            on_error: Is told what is wrong; without it, it is raised.

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
            say_nothing_is_collected("Collector")
        else:
            self._rows = CollectedRows(data, data.name, str(data.version), name, name)

    def collect(self, data: Any, correlation_context: CorrelationContext | None = None) -> CorrelationContext:
        """Collect the rows of a data frame; they are written in the background.

        Calls of the self-check before serving, and requests that are not sampled, are left out.

        Args:
            data: A data frame of pandas.
            correlation_context: What the rows can be found by; without it a new one.

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
