"""Azure's JSON for models of scikit-learn: `{"data": rows, "method": name}`, answered `{name: rows}`.

Azure's own server takes and answers it so: how-to-deploy-no-code-deployment in its documentation of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from stoker.echo import quoted
from stoker.errors import InvalidInput
from stoker.non_finite import WORDS, NonFinite
from stoker.tensors import NamedSignature, Signature
from stoker.wire.input_data import named_rows
from stoker.wire.json_bodies import parse_document
from stoker.wire.non_finite import rewritten
from stoker.wire.tensor_decoder import TensorDecoder
from stoker.wire.tensor_json import tensors_of, to_lists, writable

__all__ = ["MethodDecoder", "encode_named"]

_KEY: Final = b'"method"'


class MethodDecoder:
    """Decodes the bodies of one model. Not thread-safe: it reuses its parser's memory.

    Args:
        signature: What the model takes and gives; its `signatures` are the methods.
    """

    def __init__(self, signature: Signature) -> None:
        self._methods = {named.name: named for named in signature.signatures}
        self._default = self._methods[signature.method]
        self._decoder = TensorDecoder(self._default.tensors)

    def decode(self, body: bytes) -> tuple[str, dict[str, np.ndarray]]:
        """Return the method that is asked, and its inputs by name.

        Rows may be objects by the names of the columns, where the model has such names.

        Raises:
            MalformedBody: The body is not JSON.
            InvalidInput: The model has no such method, or its inputs are missing or have the wrong shape or type.
        """
        if _KEY not in body and b"{" not in body[1:]:
            return self._default.name, self._decoder.decode(body)
        document = parse_document(body)
        method = self._asked(document)
        if isinstance(document, dict) and "data" in document:
            document["data"] = named_rows(document["data"], method.tensors.inputs)
        return method.name, tensors_of(document, method.tensors)

    def _asked(self, document: Any) -> NamedSignature:
        name = document.get("method", self._default.name) if isinstance(document, dict) else None
        if name is None:
            return self._default
        if not isinstance(name, str) or name not in self._methods:
            served = ", ".join(self._methods)
            asked = quoted(name) if isinstance(name, str) else "something else than a text"
            raise InvalidInput(f'"method" must be one of those that are served here, {served}; got {asked}.')
        return self._methods[name]


def encode_named(outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
    """Return an object of all outputs by name, also of a single one; see `encode_outputs` for NaN."""
    listed: Any = {name: writable(array) for name, array in outputs.items()}
    text = orjson.dumps(listed, default=to_lists, option=orjson.OPT_SERIALIZE_NUMPY)
    return rewritten(text, listed, to_lists, non_finite) if b"null" in text else text
