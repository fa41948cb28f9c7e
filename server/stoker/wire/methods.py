"""Azure's JSON for models of scikit-learn: `{"data": rows, "method": name}`, answered `{name: rows}`.

Azure's own server takes and answers it so: how-to-deploy-no-code-deployment in its documentation of version 1. The
scripts that its AutoML writes take `{"Inputs": {"data": rows}, "GlobalParameters": {"method": name}}`, and answer
`{"Results": rows}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from stoker.echo import quoted
from stoker.errors import InvalidInput
from stoker.non_finite import WORDS, NonFinite
from stoker.tensors import NamedSignature, Signature
from stoker.wire.input_data import is_columns
from stoker.wire.json_bodies import parse_document
from stoker.wire.non_finite import rewritten
from stoker.wire.tensor_decoder import TensorDecoder
from stoker.wire.tensor_json import tensors_of, to_lists, writable

__all__ = ["MethodDecoder", "MethodRequest", "encode_named", "encode_results"]

_KEY: Final = b'"method"'
_OF_AUTOML: Final = "predict"
"""What AutoML's scripts mean where no method is named."""


class MethodRequest(NamedTuple):
    """A decoded request.

    Attributes:
        method: The method that is asked.
        inputs: Its inputs by name.
        results: Whether the answer is to be AutoML's.
    """

    method: str
    inputs: dict[str, np.ndarray]
    results: bool = False


class MethodDecoder:
    """Decodes the bodies of one model. Not thread-safe: it reuses its parser's memory.

    Args:
        signature: What the model takes and gives; its `signatures` are the methods.
    """

    def __init__(self, signature: Signature) -> None:
        self._methods = {named.name: named for named in signature.signatures}
        self._default = self._methods[signature.method]
        self._decoder = TensorDecoder(self._default.tensors)
        self._lists = not is_columns(self._default.tensors.inputs)

    def decode(self, body: bytes) -> MethodRequest:
        """Return the method that is asked, and its inputs by name.

        Rows may be objects by the names of the columns, where the model has such names.

        Raises:
            MalformedBody: The body is not JSON.
            InvalidInput: The model has no such method, or its inputs are missing or have the wrong shape or type.
        """
        if self._lists and _KEY not in body and b"{" not in body[1:]:
            return MethodRequest(self._default.name, self._decoder.decode(body))
        document = parse_document(body)
        if isinstance(document, dict) and "Inputs" in document and "data" not in document:
            return self._of_automl(document)
        method = self._asked(document)
        return MethodRequest(method.name, tensors_of(document, method.tensors))

    def _of_automl(self, document: Mapping[str, Any]) -> MethodRequest:
        given, parameters = document["Inputs"], document.get("GlobalParameters")
        if not isinstance(given, dict) or len(given) != 1:
            raise InvalidInput('"Inputs" must be an object with the rows as its only value: {"data": rows}.')
        (rows,) = given.values()
        asked = parameters if isinstance(parameters, dict) and "method" in parameters else {}
        method = self._asked({"method": self._methods.get(_OF_AUTOML, self._default).name, **asked})
        return MethodRequest(method.name, tensors_of({"data": rows}, method.tensors), results=True)

    def _asked(self, document: Any) -> NamedSignature:
        name = document.get("method", self._default.name) if isinstance(document, dict) else None
        if name is None:
            return self._default
        if not isinstance(name, str) or name not in self._methods:
            served = ", ".join(self._methods)
            asked = quoted(name) if isinstance(name, str) else "something else than a text"
            raise InvalidInput(f'"method" must be one of those that are served here, {served}; got {asked}.')
        return self._methods[name]


def encode_results(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return the only output as AutoML's scripts answer; see `encode_outputs` for NaN."""
    (array,) = outputs.values()
    return encode_named({"Results": array}, non_finite)


def encode_named(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return an object of all outputs by name, also of a single one; see `encode_outputs` for NaN."""
    listed: Any = {name: writable(array) for name, array in outputs.items()}
    text = orjson.dumps(listed, default=to_lists, option=orjson.OPT_SERIALIZE_NUMPY)
    return rewritten(text, listed, to_lists, non_finite) if b"null" in text else text
