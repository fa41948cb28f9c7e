"""One unary call of gRPC by its own library: what an answer is, before any load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from stoker_bench.errors import BenchedServerError

if TYPE_CHECKING:
    from stoker_bench.generators.scoring_request import ScoringRequest

__all__ = ["answer_to"]

CALL_TIMEOUT_S: Final = 30


def answer_to(request: ScoringRequest) -> bytes:
    """Make a call whose message is the request's body, and return the message of its answer.

    Raises:
        BenchedServerError: The call ended with another status than OK.
    """
    metadata = [(name.lower(), value) for name, value in request.headers.items()]
    with grpc.insecure_channel(f"{request.host}:{request.port}") as channel:
        try:
            answer: bytes = channel.unary_unary(request.path)(
                request.body, metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise BenchedServerError(f"{request.uri} answered {error}") from error
    return answer
