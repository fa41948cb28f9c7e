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
    AnswerExpired,
    AttemptsUsedUp,
    BodyTooLarge,
    CallbackRefused,
    ConnectionFailed,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    ErrorAnswer,
    ExpectationFailed,
    Forbidden,
    HeaderTooLarge,
    IdempotencyKeyReused,
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
    QuotaExceeded,
    RegionTaken,
    RequestOverQuota,
    RequestRefused,
    RequestTimeout,
    ScoringTimeout,
    SequenceRequired,
    ServiceFailed,
    SpoolFull,
    StokerClientError,
    TargetTooLong,
    Throttled,
    TimedOut,
    TooManySequences,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnknownSequence,
    UnknownService,
    UnsupportedEncoding,
)
from stoker_client.pieces import AsyncPieces, Pieces
from stoker_client.urgency import Tier

__all__ = [
    "AccessToken",
    "Answer",
    "AnswerExpired",
    "AsyncClient",
    "AsyncPieces",
    "AttemptsUsedUp",
    "BodyTooLarge",
    "CallbackRefused",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "DeviceLost",
    "DeviceOutOfMemory",
    "ErrorAnswer",
    "ExpectationFailed",
    "Forbidden",
    "HeaderTooLarge",
    "IdempotencyKeyReused",
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
    "Pieces",
    "QuotaExceeded",
    "RegionTaken",
    "RequestOverQuota",
    "RequestRefused",
    "RequestTimeout",
    "Rows",
    "ScoringTimeout",
    "SequenceRequired",
    "ServiceFailed",
    "SpoolFull",
    "StokerClientError",
    "TargetTooLong",
    "Throttled",
    "Tier",
    "TimedOut",
    "TooManySequences",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownSequence",
    "UnknownService",
    "UnsupportedEncoding",
]
