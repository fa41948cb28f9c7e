"""Python client of the Stoker inference server: numpy in, numpy out, over HTTP.

    from stoker_client import Client

    with Client("http://127.0.0.1:8080/score", key="...") as client:
        classes = client.score(images)

The package needs no part of the server.
"""

from __future__ import annotations

from stoker_client.answers import Answer
from stoker_client.async_client import AsyncClient
from stoker_client.bearer import AccessToken
from stoker_client.bodies import Rows
from stoker_client.client import Client
from stoker_client.errors import (
    BodyTooLarge,
    ConnectionFailed,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    ErrorAnswer,
    ExpectationFailed,
    Forbidden,
    HeaderTooLarge,
    ImageTooLarge,
    InvalidInput,
    InvalidRows,
    MalformedBody,
    MethodNotAllowed,
    ModelFailed,
    NonFiniteOutput,
    NotFound,
    NotReady,
    NotSupported,
    OutOfScope,
    OutputTooLarge,
    Overloaded,
    RequestRefused,
    RequestTimeout,
    ScoringTimeout,
    ServiceFailed,
    StokerClientError,
    TargetTooLong,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnknownService,
    UnsupportedEncoding,
)

__all__ = [
    "AccessToken",
    "Answer",
    "AsyncClient",
    "BodyTooLarge",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "DeviceLost",
    "DeviceOutOfMemory",
    "ErrorAnswer",
    "ExpectationFailed",
    "Forbidden",
    "HeaderTooLarge",
    "ImageTooLarge",
    "InvalidInput",
    "InvalidRows",
    "MalformedBody",
    "MethodNotAllowed",
    "ModelFailed",
    "NonFiniteOutput",
    "NotFound",
    "NotReady",
    "NotSupported",
    "OutOfScope",
    "OutputTooLarge",
    "Overloaded",
    "RequestRefused",
    "RequestTimeout",
    "Rows",
    "ScoringTimeout",
    "ServiceFailed",
    "StokerClientError",
    "TargetTooLong",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownService",
    "UnsupportedEncoding",
]
