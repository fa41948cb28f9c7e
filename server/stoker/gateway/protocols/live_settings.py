"""Trace and log settings: Triton's trace and logging extensions.

Changes need the admin key, and the supervisor makes them for all processes; reading follows the rules of metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from stoker.errors import MalformedBody, MethodNotAllowed, NotSupported, UnknownService, cut, quoted
from stoker.gateway.http.requests import Requester, requester_of
from stoker.gateway.protocols.access import administration_of, check_metadata_access
from stoker.gateway.protocols.repository import json_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from stoker.gateway.gateway import Gateway

TRACE: Final = "trace"
LOGGING: Final = "logging"
"""The extensions' names."""

_MODE: Final = "opentelemetry"
_LEVELS: Final = {"OFF": False, "TIMESTAMPS": True}
_MOST: Final = (1 << 31) - 1
_NUMBERS: Final = {"trace_rate": ("rate", 0), "trace_count": ("left", -1)}
"""The integer settings: their names in `AskTraces`, and their least values."""
_FILES: Final = ("trace_file", "log_frequency")
_SWITCHES: Final = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_FORMS: Final = {"default": None, "ISO8601": "text", "text": "text", "json": "json"}


async def change_traces(
    gateway: Gateway, requester: Requester, model: str, content: Mapping[str, Any]
) -> dict[str, str | list[str]]:
    """Change which requests are traced, and return the new settings; names in both are Triton's.

    Args:
        model: The model; empty for the default of all models.
        content: The settings to change; a value of None resets a setting.
    """
    administration = administration_of(gateway, TRACE)
    known = gateway.directory.models.get(model)
    if model and known is None:
        raise UnknownService(f"Request for unknown model: '{cut(model)}' is not found")
    if content:
        administration.access.check(requester)
    else:
        check_metadata_access(gateway, requester, () if known is None else known.services)
    settings = await administration.traces(model, _trace_changes(content))
    return {
        "trace_level": ["TIMESTAMPS" if settings["on"] else "OFF"],
        "trace_rate": str(settings["rate"]),
        "trace_count": str(settings["left"]),
        "trace_mode": _MODE,
    }


async def change_logs(
    gateway: Gateway, requester: Requester, content: Mapping[str, Any]
) -> dict[str, str | bool | int]:
    """Change the log settings of all processes, and return the new settings; see `change_traces`."""
    administration = administration_of(gateway, LOGGING)
    if content:
        administration.access.check(requester)
    else:
        check_metadata_access(gateway, requester)
    settings = await administration.logs(_log_changes(content))
    return {
        "log_file": "",
        **{name: settings[field] for name, field in _SWITCHES.items()},
        "log_verbose_level": settings["verbose_level"],
        "log_format": "json" if settings["form"] == "json" else "ISO8601",
    }


class LiveSettingsApi:
    """The handlers of `/v2/.../trace/setting` and `/v2/logging`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def traces(self, request: Request) -> Response:
        """Return the trace settings, after changing those that the request names."""
        model, content = request.path_params.get("name", ""), await _content(request)
        return JSONResponse(await change_traces(self._gateway, requester_of(request), model, content))

    async def logs(self, request: Request) -> Response:
        """Return the log settings, after changing those that the request names."""
        content = await _content(request)
        return JSONResponse(await change_logs(self._gateway, requester_of(request), content))


async def _content(request: Request) -> Mapping[str, Any]:
    if request.method in ("GET", "HEAD"):
        return {}
    if request.method != "POST":
        raise MethodNotAllowed("Method Not Allowed", allowed=("GET", "HEAD", "POST"))
    return await json_content(request)


def _trace_changes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Translate Triton's trace settings for the supervisor."""
    changes: dict[str, Any] = {}
    for name, value in content.items():
        if name in _FILES:
            raise NotSupported(f"{name} cannot be set: traces are sent by OTLP, and are in no file")
        if name == "trace_mode":
            if value not in (None, _MODE):
                raise NotSupported(f"trace_mode is {_MODE}, and cannot be changed")
        elif name == "trace_level":
            changes["on"] = None if value is None else _level(value)
        elif name in _NUMBERS:
            field, least = _NUMBERS[name]
            changes[field] = None if value is None else _number(name, value, least)
        else:
            raise MalformedBody(f"the trace setting '{cut(name)}' is not known")
    return changes


def _level(value: Any) -> bool:
    levels = [value] if isinstance(value, str) else value
    if isinstance(levels, list) and "TENSORS" in levels:
        raise NotSupported(
            "the trace level TENSORS is not supported: traces have no tensors, collected data have"
        )
    if not isinstance(levels, list) or len(levels) != 1 or levels[0] not in list(_LEVELS):
        raise MalformedBody("trace_level has to be OFF or TIMESTAMPS")
    return _LEVELS[levels[0]]


def _number(name: str, value: Any, least: int) -> int:
    number = value
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 12:
        number = int(value)
    if type(number) is not int or not least <= number <= _MOST:
        raise MalformedBody(f"{name} has to be an integer from {least} to {_MOST}")
    return number


def _log_changes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Translate Triton's log settings for the supervisor; None leaves a setting unchanged."""
    changes: dict[str, Any] = {}
    for name, value in content.items():
        if value is None:
            continue
        if name == "log_file":
            raise NotSupported("log_file cannot be set: the log is standard error")
        if name in _SWITCHES:
            if not isinstance(value, bool):
                raise MalformedBody(f"{name} has to be a boolean")
            changes[_SWITCHES[name]] = value
        elif name == "log_verbose_level":
            changes["verbose_level"] = _number(name, value, 0)
        elif name == "log_format":
            if not isinstance(value, str) or value not in _FORMS:
                raise MalformedBody(f"log_format has to be one of {', '.join(_FORMS)}, not {quoted(value)}")
            changes["form"] = _FORMS[value]
        else:
            raise MalformedBody(f"the log setting '{cut(name)}' is not known")
    return changes
