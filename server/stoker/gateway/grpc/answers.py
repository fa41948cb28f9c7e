"""Answers to infer requests as messages of gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.gateway.grpc.contents import fill_typed
from stoker.wire.oip import InferRequest, classified, datatype_of, to_raw

__all__ = ["fill_answer"]


def fill_answer(
    answer: Any,
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    *,
    batched: bool,
) -> None:
    """Write an answer: raw if the request was, or if an output has a datatype without typed contents.

    Args:
        answer: An empty `ModelInferResponse`.
        model: The model's name.
        version: Its version.
        request: What it answers.
        outputs: The model's outputs by name.
        batched: Whether their first axis is the batch.

    Raises:
        InvalidInput: An output cannot be given as it was asked for.
    """
    answer.model_name, answer.model_version, answer.id = model, version, request.id
    arrays = [classified(wanted, outputs[wanted.name], batched=batched) for wanted in request.wanted]
    raw = any([wanted.binary for wanted in request.wanted] + [array.dtype == np.float16 for array in arrays])
    for wanted, array in zip(request.wanted, arrays, strict=True):
        tensor = answer.outputs.add(name=wanted.name, datatype=datatype_of(array), shape=array.shape)
        if raw:
            answer.raw_output_contents.append(to_raw(array))
        else:
            fill_typed(tensor.contents, array)
