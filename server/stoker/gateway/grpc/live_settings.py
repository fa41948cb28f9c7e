"""The trace and logging extensions over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.gateway.grpc.calls import BEARER_METADATA, RpcCall
from stoker.gateway.grpc.messages import message
from stoker.gateway.protocols.live_settings import LiveSettings

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway

__all__ = ["LiveSettingsMethods"]

_TraceResponse = message("TraceSettingResponse")
_LogResponse = message("LogSettingsResponse")


class LiveSettingsMethods:
    """What the same extensions do over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._settings = LiveSettings(gateway, BEARER_METADATA)

    async def traces(self, request: Any, call: RpcCall) -> Any:
        """Answer a `TraceSettingRequest`; a setting without a value is taken back."""
        content = {name: _of_values(list(setting.value)) for name, setting in request.settings.items()}
        told = await self._settings.traces(call.authorization, request.model_name, content)
        answer = _TraceResponse()
        for name, value in told.items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer

    async def logs(self, request: Any, call: RpcCall) -> Any:
        """Answer a `LogSettingsRequest`."""
        content = {name: _of_choice(setting) for name, setting in request.settings.items()}
        answer = _LogResponse()
        for name, value in (await self._settings.logs(call.authorization, content)).items():
            setting = answer.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return answer


def _of_values(values: list[str]) -> Any:
    """What JSON would have: a text, several, or nothing."""
    if len(values) == 1:
        return values[0]
    return values or None


def _of_choice(setting: Any) -> Any:
    chosen = setting.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(setting, chosen)
