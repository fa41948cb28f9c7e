"""Infer requests and answers of one model, with shortcuts for callers who repeat themselves.

Requests with binary tensors mostly have the same JSON except for the id. The codec remembers this JSON byte for byte
with its meaning, so it is parsed and checked once; the JSON of answers is written once for each of their shapes.
Flat lists of numbers are flattened by simdjson without making objects. Everything else, and the first request of each
kind, goes through `wire.oip_requests` and `wire.oip_responses`: both ways have the same result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import simdjson

from stoker.errors import StokerError
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import ModelTensors
from stoker.wire.json_bodies import MAX_VALUES, check_values
from stoker.wire.nested_lists import BUFFERS, KEPT_BYTES
from stoker.wire.oip_requests import (
    MAX_ID_CHARS,
    InferRequest,
    RegionOutput,
    WantedOutput,
    decode_document,
    decode_infer,
)
from stoker.wire.oip_responses import encode_infer
from stoker.wire.oip_tensors import RegionReader, to_raw

_LISTS_OF_INPUT: Final = 2
_MAX_OBJECTS: Final = 100


class NumberLists:
    """Reads requests whose inputs are flat lists of numbers. Not thread-safe: it reuses its parser's memory."""

    def __init__(self, tensors: ModelTensors) -> None:
        self._parser = simdjson.Parser()
        self._buffers: dict[str, tuple[str, type[Any]]] = {}
        # A request has all inputs, so one that cannot be read here excludes the request.
        if not any(info.dtype in ("string", "bool", "float16") for info in tensors.inputs):
            self._buffers = {info.name: BUFFERS[info.kind] for info in tensors.inputs}
        # Lists: of all inputs, of all outputs, and some for each input.
        self._most_lists = 2 + _LISTS_OF_INPUT * len(tensors.inputs)

    def read(self, body: bytes) -> dict[str, Any] | None:
        """Return the document with the `data` of each input as a vector of the widest dtype of its kind.

        None if the request has another form: other values, nested lists, duplicate names.
        """
        # The other parser is stricter about the beginning and the size; nested lists are not parsed twice.
        if (
            not self._buffers
            or not body.startswith(b"{")
            or body.count(b"{") > _MAX_OBJECTS
            or body.count(b"[") > self._most_lists
        ):
            return None
        if len(body) > MAX_VALUES:
            check_values(body)
        document = self._read(body)
        if len(body) > KEPT_BYTES:
            self._parser = simdjson.Parser()
        return document

    def _read(self, body: bytes) -> dict[str, Any] | None:
        document: Any
        entries: Any
        try:
            document = self._parser.parse(body)
            read = _members(document, without="inputs")
            entries = document["inputs"]
            read["inputs"] = inputs = [self._entry(entry) for entry in entries]
            # All lists of a request of this form, so there is none among the numbers of another.
            lists = 1 + _LISTS_OF_INPUT * len(inputs) + isinstance(read.get("outputs"), list)
            return read if body.count(b"[") == lists else None
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError):
            return None
        finally:
            # The parser refuses its next document while anything refers to the last one.
            document = entries = None

    def _entry(self, entry: Any) -> dict[str, Any]:
        read = _members(entry, without="data")
        buffer_type, dtype = self._buffers[read["name"]]
        if not isinstance(read["shape"], list):
            raise TypeError("no list")
        read["data"] = np.frombuffer(entry["data"].as_buffer(of_type=buffer_type), dtype)
        return read


def _members(value: Any, without: str) -> dict[str, Any]:
    """Return all members of an object except one, which must exist; raises ValueError for duplicate names."""
    names = list(value.keys())
    if len(set(names)) < len(names) or without not in names:
        raise ValueError("names come twice, or not at all")
    return {name: _plain(value[name]) for name in names if name != without}


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


_MAX_FORMS: Final = 256
_MAX_REMEMBERED_BYTES: Final = 4096
# As clients write it: first, and without escapes.
_ID: Final = re.compile(rb'\{"id": ?"([ !#-\[\]-~]{1,%d})", ?' % MAX_ID_CHARS)


class _InputSpan(NamedTuple):
    """The position of an input among the bytes after the JSON."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int


class _Form(NamedTuple):
    """The content of a request without its id and its data."""

    places: tuple[_InputSpan, ...]
    data_bytes: int
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None
    tier: int | None


class InferCodec:
    """Decodes the requests to one version of a model, and encodes their answers."""

    def __init__(
        self, model: str, version: str, tensors: ModelTensors, non_finite: NonFinite = WORDS
    ) -> None:
        self._non_finite = non_finite
        self._model, self._version, self._tensors = model, version, tensors
        self._forms: dict[bytes, _Form] = {}
        # The JSON of answers before and after the id, without binary data.
        self._answers: dict[Any, tuple[bytes, bytes]] = {}
        self._lists = NumberLists(tensors)
        # Strings have individual lengths, the values of booleans must be checked, and no form keeps parameters.
        self._regular = not tensors.takes_facts and all(
            info.dtype not in ("string", "bool") for info in tensors.inputs
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process starts with nothing remembered.
        return type(self), (self._model, self._version, self._tensors, self._non_finite)

    def decode(
        self, body: bytes, json_bytes: int | None, regions: RegionReader | None = None
    ) -> InferRequest:
        """Decode a request; see `oip_requests.decode_infer`. Arrays of binary inputs are views of the body."""
        if json_bytes is None and (request := self._decode_lists(body, regions)) is not None:
            return request
        if not json_bytes or json_bytes > _MAX_REMEMBERED_BYTES or not self._regular:
            return decode_infer(self._model, self._tensors, body, json_bytes, regions)
        id_match = _ID.match(body, 0, json_bytes)
        key = body[:json_bytes] if id_match is None else b"{" + body[id_match.end() : json_bytes]
        form = self._forms.get(key)
        if form is None or len(body) != json_bytes + form.data_bytes:
            request = decode_infer(self._model, self._tensors, body, json_bytes, regions)
            self._remember(key, request, body, json_bytes)
            return request
        inputs = {
            name: np.ndarray(shape, dtype, body, json_bytes + start)
            for name, dtype, shape, start in form.places
        }
        name = "" if id_match is None else id_match[1].decode("ascii")
        return InferRequest(name, inputs, form.wanted, form.timeout_ns, form.tier)

    def _decode_lists(self, body: bytes, regions: RegionReader | None) -> InferRequest | None:
        """Decode a request without binary data whose numbers are in flat lists; None if anything is unusual."""
        document = self._lists.read(body)
        if document is None:
            return None
        try:
            return decode_document(self._model, self._tensors, document, memoryview(b""), regions)
        except StokerError:
            return None

    def _remember(self, key: bytes, request: InferRequest, body: bytes, json_bytes: int) -> None:
        """Remember the JSON of a request if all its inputs are binary and it does not use regions."""
        if b'"id"' in key or b"\\" in key or b'"shared_memory' in key or request.sequence is not None:
            # The id is written differently or twice; or there would be an entry for each sequence.
            return
        begin = _address(np.frombuffer(body, np.uint8)) + json_bytes
        data_bytes = len(body) - json_bytes
        places = tuple(
            _InputSpan(name, array.dtype, array.shape, _address(array) - begin)
            for name, array in request.inputs.items()
        )
        sizes = [array.nbytes for array in request.inputs.values()]
        if sum(sizes) != data_bytes or not all(
            size and 0 <= place.start < data_bytes for size, place in zip(sizes, places, strict=True)
        ):
            return
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        self._forms[key] = _Form(places, data_bytes, request.wanted, request.timeout_ns, request.tier)

    def encode(self, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> tuple[int | None, bytes]:
        """Encode an answer; see `oip_responses.encode_infer`."""
        arrays = [outputs[wanted.name] for wanted in request.wanted]
        key = (request.wanted, *[array.shape for array in arrays])
        answer = self._answers.get(key)
        if answer is None:
            if not all(map(_is_plain, request.wanted, arrays)):
                return self._encode(request, outputs)
            answer = self._write(key, request, outputs)
        before, behind = answer
        id_member = b'"id":' + orjson.dumps(request.id) + b"," if request.id else b""
        data = [to_raw(array) for array in arrays]
        return len(before) + len(id_member) + len(behind), b"".join((before, id_member, behind, *data))

    def _encode(self, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> tuple[int | None, bytes]:
        return encode_infer(
            self._model,
            self._version,
            request,
            outputs,
            batched=self._tensors.batched,
            non_finite=self._non_finite,
        )

    def _write(
        self, key: Any, request: InferRequest, outputs: Mapping[str, np.ndarray]
    ) -> tuple[bytes, bytes]:
        """Write an answer without its id, and remember it."""
        json_bytes, body = self._encode(InferRequest("", {}, request.wanted), outputs)
        text = body[:json_bytes]
        place = text.index(b'"outputs":')
        if len(self._answers) >= _MAX_FORMS:
            self._answers.clear()
        answer = self._answers[key] = text[:place], text[place:]
        return answer


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _is_plain(wanted: WantedOutput, array: np.ndarray) -> bool:
    """Return whether an output is sent as it is, as bytes whose number follows from its shape."""
    given = wanted.binary and not wanted.classes and array.dtype != object and array.size > 0
    return given and not isinstance(wanted, RegionOutput)
