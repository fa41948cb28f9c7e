"""What frontends ask of the supervisor for their callers, and how it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.settings.adjustments import Adjustments
from stoker.settings.takeover import Canary
from stoker.versions import VersionPolicy

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
    """A frontend asks for a caller which models there are.

    Attributes:
        ticket: What the answer names.
        ready: Only those that are ready.
    """

    ticket: int
    ready: bool


@dataclass(frozen=True, slots=True)
class AskEvents:
    """A frontend asks for a caller what has happened to versions.

    Attributes:
        ticket: What the answer names.
        model: Only those of this model; None for all.
    """

    ticket: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class AskLoad:
    """A frontend asks for a caller to load a model.

    Attributes:
        ticket: What the answer names.
        model: Name of the model.
        version: One version, in addition to those that are served.
        policy: Which versions, if not those that its settings ask for.
        adjustments: How it is to be batched, if not as its settings say; of no account where a version is named.
    """

    ticket: int
    model: str
    version: int | None = None
    policy: VersionPolicy | None = None
    adjustments: Adjustments = field(default_factory=Adjustments)


@dataclass(frozen=True, slots=True)
class AskShift:
    """A frontend asks for a caller to send the requests of a model to its versions by other weights.

    Attributes:
        ticket: What the answer names.
        model: Name of the model.
        canary: The weights of its labels.
    """

    ticket: int
    model: str
    canary: Canary


@dataclass(frozen=True, slots=True)
class AskUnload:
    """A frontend asks for a caller to unload a model.

    Attributes:
        ticket: What the answer names.
        model: Name of the model.
        version: One version; None for all.
    """

    ticket: int
    model: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class AskReload:
    """A frontend asks for a caller to replace the server by a new one.

    Attributes:
        ticket: What the answer names.
    """

    ticket: int


@dataclass(frozen=True, slots=True)
class AskTraces:
    """A frontend asks for a caller which requests are traced, and for others to be.

    Attributes:
        ticket: What the answer names.
        model: The model that is meant; empty for all that have no settings of their own.
        changes: What is to be changed, see `stoker.supervisor.trace_settings.TraceSettings.change`.
    """

    ticket: int
    model: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskLogs:
    """A frontend asks for a caller what the logs of all processes have, and for them to have something else.

    Attributes:
        ticket: What the answer names.
        changes: Fields of `stoker.system.log_settings.LogSettings`, with what they are to be; without a form, the one
            that the server was started with.
    """

    ticket: int
    changes: Mapping[str, Any] = field(default_factory=dict)


Ask = AskIndex | AskEvents | AskLoad | AskUnload | AskShift | AskReload | AskTraces | AskLogs
"""What a frontend asks of the supervisor; answered by `Reply` or `Refusal`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The supervisor has done what was asked of it.

    Attributes:
        ticket: That of the question.
        entries: The index, the events, or the settings; empty for other questions.
    """

    ticket: int
    entries: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The supervisor has not done what was asked of it.

    Attributes:
        ticket: That of the question.
        status: The status of the answer over HTTP.
        code: The error's code.
        error: Its text, for the caller.
        retry_after_s: When to try again, in whole seconds, or None.
    """

    ticket: int
    status: int
    code: str
    error: str
    retry_after_s: int | None = None
