"""MLflow's scoring protocol and Azure's variant of it, for models whose inputs are tensors. Sans-I/O.

`{"instances": …}` and `{"inputs": …}` are TensorFlow Serving's. Tables (`dataframe_split`, `dataframe_records`,
Azure's `input_data`) are accepted if their columns are the inputs of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from stoker.errors import InvalidInput, MalformedBody
from stoker.settings.choices import WORDS, NonFinite
from stoker.wire.json_bodies import parse_document
from stoker.wire.tables import columns_of, columns_of_rows, is_columns, is_table, named_rows
from stoker.wire.tfs import PredictRequest, decode_predict, encode_predict

if TYPE_CHECKING:
    import numpy as np

    from stoker.tensors import NamedSignature

_FORMATS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs", "input_data")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A decoded request; with `bare`, the predictions are the whole answer, as from Azure's server."""

    predict: PredictRequest
    bare: bool


def decode_invocation(signature: NamedSignature, body: bytes) -> Invocation:
    """Decode a body of `/invocations`."""
    document = parse_document(body)
    formats = [name for name in _FORMATS if name in document] if isinstance(document, dict) else []
    if len(formats) != 1:
        raise MalformedBody(f"Expected a JSON object with exactly one of {', '.join(_FORMATS)}.")
    (kind,) = formats
    if document.get("params"):
        raise InvalidInput("This model takes no params.")
    inputs = signature.tensors.inputs
    value = document[kind]
    if kind in ("dataframe_records", "instances") and is_columns(inputs):
        body = orjson.dumps({"inputs": columns_of_rows(value, signature.tensors)})
    elif kind == "dataframe_records":
        body = orjson.dumps({"instances": named_rows(value, inputs)})
    elif kind in ("dataframe_split", "input_data"):
        given = columns_of(value, inputs) if kind == "dataframe_split" or is_table(value) else value
        body = orjson.dumps({"inputs": given})
    return Invocation(decode_predict([signature], body), kind == "input_data")


def encode_invocation(
    invocation: Invocation, outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS
) -> bytes:
    """Encode the answer: `{"predictions": …}`, or the predictions alone."""
    return encode_predict(
        invocation.predict, outputs, non_finite, key="" if invocation.bare else "predictions"
    )
