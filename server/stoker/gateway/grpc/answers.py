"""Answers to infer requests as messages of gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stoker.gateway.grpc.contents import fill_typed
from stoker.gateway.grpc.messages import ModelInferResponse
from stoker.wire.oip import InferRequest, classified, datatype_of, to_raw

__all__ = ["AnswerWriter"]

_MAX_HEADS: Final = 1024


class AnswerWriter:
    """Writes the answers of one model.

    What they say beside the data and the id is the same for all answers with outputs of the same shapes, and is made
    once.

    Args:
        model: The model's name.
        version: Its version.
        batched: Whether the first axis of its outputs is the batch.
    """

    def __init__(self, model: str, version: str, *, batched: bool) -> None:
        self._model, self._version, self._batched = model, version, batched
        self._heads: dict[Any, tuple[bytes, bool]] = {}

    def write(self, answer: Any, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> None:
        """Write an answer: raw if the request was, or if an output has a datatype without typed contents.

        Args:
            answer: An empty `ModelInferResponse`.
            request: What it answers.
            outputs: The model's outputs by name.

        Raises:
            InvalidInput: An output cannot be given as it was asked for.
        """
        arrays = [
            classified(wanted, outputs[wanted.name], batched=self._batched) for wanted in request.wanted
        ]
        key = (request.wanted, *[array.shape for array in arrays])
        known = self._heads.get(key)
        if known is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            known = self._heads[key] = self._head(request, arrays)
        head, raw = known
        answer.MergeFromString(head)
        answer.id = request.id
        for index, array in enumerate(arrays):
            if raw:
                answer.raw_output_contents.append(to_raw(array))
            else:
                fill_typed(answer.outputs[index].contents, array)

    def _head(self, request: InferRequest, arrays: list[np.ndarray]) -> tuple[bytes, bool]:
        """What is the same for all answers with these shapes, and whether they are raw."""
        answer = ModelInferResponse(model_name=self._model, model_version=self._version)
        for wanted, array in zip(request.wanted, arrays, strict=True):
            answer.outputs.add(name=wanted.name, datatype=datatype_of(array), shape=array.shape)
        raw = any(wanted.binary for wanted in request.wanted)
        return answer.SerializeToString(), raw or any(array.dtype == np.float16 for array in arrays)
