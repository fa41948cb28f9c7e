"""Requests of frontends to the supervisor on behalf of callers, and the supervisor's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.settings.choices import Adjustments
from stoker.settings.names import VersionPolicy
from stoker.settings.traffic import Canary

__all__ = [
    "Ask",
    "AskEvents",
    "AskIndex",
    "AskLoad",
    "AskLogs",
    "AskReload",
    "AskShift",
    "AskTraces",
    "AskUnload",
    "Refusal",
    "Reply",
]


@dataclass(frozen=True, slots=True)
class AskIndex:
    """A frontend requests the list of models.

    Attributes:
        ticket: Identifies the request in the answer.
        ready: List only models that are ready.
    """

    ticket: int
    ready: bool


@dataclass(frozen=True, slots=True)
class AskEvents:
    """A frontend requests the events of versions.

    Attributes:
        ticket: Identifies the request in the answer.
        model: Return events of this model only; None for all.
    """

    ticket: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class AskLoad:
    """A frontend requests a model to be loaded.

    Attributes:
        ticket: Identifies the request in the answer.
        model: Name of the model.
        version: A single version to load in addition to the served ones.
        policy: The versions to serve instead of those in the model's settings.
        adjustments: Changes to the model's batching settings; ignored if `version` is given.
    """

    ticket: int
    model: str
    version: int | None = None
    policy: VersionPolicy | None = None
    adjustments: Adjustments = field(default_factory=Adjustments)


@dataclass(frozen=True, slots=True)
class AskShift:
    """A frontend requests new canary weights for the versions of a model.

    Attributes:
        ticket: Identifies the request in the answer.
        model: Name of the model.
        canary: The weights by label.
    """

    ticket: int
    model: str
    canary: Canary


@dataclass(frozen=True, slots=True)
class AskUnload:
    """A frontend requests a model to be unloaded.

    Attributes:
        ticket: Identifies the request in the answer.
        model: Name of the model.
        version: The version to unload; None for all.
    """

    ticket: int
    model: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class AskReload:
    """A frontend requests the server to be replaced by a new one (reload).

    Attributes:
        ticket: Identifies the request in the answer.
    """

    ticket: int


@dataclass(frozen=True, slots=True)
class AskTraces:
    """A frontend requests the trace settings, or changes to them.

    Attributes:
        ticket: Identifies the request in the answer.
        model: Name of the model; empty for the settings of all models without their own.
        changes: The changes, see `stoker.supervisor.trace_settings.TraceSettings.change`.
    """

    ticket: int
    model: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskLogs:
    """A frontend requests the log settings of all processes, or changes to them.

    Attributes:
        ticket: Identifies the request in the answer.
        changes: Fields of `stoker.system.logs.LogSettings` with their new values; without a format, the one
            that the server was started with.
    """

    ticket: int
    changes: Mapping[str, Any] = field(default_factory=dict)


Ask = AskIndex | AskEvents | AskLoad | AskUnload | AskShift | AskReload | AskTraces | AskLogs
"""Requests of a frontend to the supervisor; answered by `Reply` or `Refusal`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The supervisor has carried out a request.

    Attributes:
        ticket: The ticket of the request.
        entries: The index, the events, or the settings; empty for other requests.
    """

    ticket: int
    entries: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The supervisor has refused a request, or failed to carry it out.

    Attributes:
        ticket: The ticket of the request.
        status: The HTTP status of the answer.
        code: The error code.
        error: The error message for the caller.
        retry_after_s: When to retry, in whole seconds, or None.
    """

    ticket: int
    status: int
    code: str
    error: str
    retry_after_s: int | None = None
