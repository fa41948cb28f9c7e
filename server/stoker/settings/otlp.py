"""What traces are sent in: the protocols of OTLP, and what OpenTelemetry's variables say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["OtlpProtocol", "said_protocol"]

OtlpProtocol = Literal["http/protobuf", "grpc"]

_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def said_protocol(environ: Mapping[str, str]) -> str:
    """Return which protocol the variables ask for, which may be none of ours; HTTP where they do not say."""
    return next((environ[name] for name in _VARIABLES if environ.get(name)), "http/protobuf")
