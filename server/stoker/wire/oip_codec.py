"""Infer requests and answers of one model, for callers who repeat themselves.

What a request with binary tensors says beside its data and its id is the same every time. So it is remembered byte
for byte with what it said, and read and checked once; what the answers say is written once for each of their shapes.
Everything else goes through `wire.oip_requests` and `wire.oip_responses`, and so does what is remembered, the first
time: both give the same.
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

__all__ = ["InferCodec", "NumberLists"]


# The JSON of infer requests whose inputs are flat lists of numbers, which simdjson flattens without making objects.
#
# As with rows of numbers there are two paths with the same verdict: what cannot be proved here goes to
# `wire.oip_requests`, which also says what is wrong.


_LISTS_OF_INPUT: Final = 2
_MAX_OBJECTS: Final = 100


class NumberLists:
    """Reads the requests of one model. Not thread-safe: it reuses its parser's memory.

    Args:
        tensors: What the model takes.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        self._parser = simdjson.Parser()
        self._buffers: dict[str, tuple[str, type[Any]]] = {}
        # Each request has all inputs, so one that cannot be read here keeps the others from it.
        if not any(info.dtype in ("string", "bool", "float16") for info in tensors.inputs):
            self._buffers = {info.name: BUFFERS[np.dtype(info.dtype).kind] for info in tensors.inputs}
        # Each input has some, they are in one, and so are the outputs.
        self._most_lists = 2 + _LISTS_OF_INPUT * len(tensors.inputs)

    def read(self, body: bytes) -> dict[str, Any] | None:
        """Return the document with the `data` of each input as a vector of the widest dtype of its kind.

        None if it is something else than such a request: other values, nested lists, names that come twice.

        Raises:
            BodyTooLarge: See `check_values`.
        """
        # A body may begin with less, or hold more, than the other parser takes; nested lists are not parsed twice.
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
            # Each list that a request of this form has; so there is none within another one's numbers.
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
    """The members of an object but one, which is there; raises ValueError if one is there twice."""
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
# As clients write it that send one: first, and without anything that has to be escaped.
_ID: Final = re.compile(rb'\{"id": ?"([ !#-\[\]-~]{1,%d})", ?' % MAX_ID_CHARS)


class _Place(NamedTuple):
    """An input among the bytes behind the JSON."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int


class _Form(NamedTuple):
    """What a request says beside its id and its data."""

    places: tuple[_Place, ...]
    data_bytes: int
    wanted: tuple[WantedOutput, ...]
    timeout_ns: int | None
    tier: int | None


class _Answer(NamedTuple):
    """What an answer says beside its id and its data: the JSON before and behind the id."""

    before: bytes
    behind: bytes


class InferCodec:
    """Decodes the requests to one model, and encodes their answers.

    Args:
        model: Its name.
        version: Its version.
        tensors: What it takes and gives.
        non_finite: What becomes of NaN and infinities in JSON.
    """

    def __init__(
        self, model: str, version: str, tensors: ModelTensors, non_finite: NonFinite = WORDS
    ) -> None:
        self._non_finite = non_finite
        self._model, self._version, self._tensors = model, version, tensors
        self._forms: dict[bytes, _Form] = {}
        self._answers: dict[Any, _Answer] = {}
        self._lists = NumberLists(tensors)
        # Strings have lengths of their own, and of booleans the values have to be looked at.
        self._regular = all(info.dtype not in ("string", "bool") for info in tensors.inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        # What it remembers is for the process that has seen it.
        return type(self), (self._model, self._version, self._tensors, self._non_finite)

    def decode(
        self, body: bytes, json_bytes: int | None, regions: RegionReader | None = None
    ) -> InferRequest:
        """Decode a request; see `wire.oip_requests.decode_infer`. Arrays of binary inputs are views of the body."""
        if json_bytes is None and (request := self._decode_lists(body, regions)) is not None:
            return request
        if not json_bytes or json_bytes > _MAX_REMEMBERED_BYTES or not self._regular:
            return decode_infer(self._model, self._tensors, body, json_bytes, regions)
        said = _ID.match(body, 0, json_bytes)
        key = body[:json_bytes] if said is None else b"{" + body[said.end() : json_bytes]
        form = self._forms.get(key)
        if form is None or len(body) != json_bytes + form.data_bytes:
            request = decode_infer(self._model, self._tensors, body, json_bytes, regions)
            self._remember(key, request, body, json_bytes)
            return request
        inputs = {
            name: np.ndarray(shape, dtype, body, json_bytes + start)
            for name, dtype, shape, start in form.places
        }
        name = "" if said is None else said[1].decode("ascii")
        return InferRequest(name, inputs, form.wanted, form.timeout_ns, form.tier)

    def _decode_lists(self, body: bytes, regions: RegionReader | None) -> InferRequest | None:
        """Decode a request that is JSON alone, if its numbers are in flat lists, and nothing is wrong with it."""
        document = self._lists.read(body)
        if document is None:
            return None
        try:
            return decode_document(self._model, self._tensors, document, memoryview(b""), regions)
        except StokerError:
            return None

    def _remember(self, key: bytes, request: InferRequest, body: bytes, json_bytes: int) -> None:
        """Keep what a request has said if all its inputs are binary, and it has nothing to do with regions."""
        if b'"id"' in key or b"\\" in key or b'"shared_memory' in key or request.sequence is not None:
            # Written another way, or twice, where the last one counts; or there are as many as sequences.
            return
        begin = _address(np.frombuffer(body, np.uint8)) + json_bytes
        data_bytes = len(body) - json_bytes
        places = tuple(
            _Place(name, array.dtype, array.shape, _address(array) - begin)
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
        """Encode an answer; see `wire.oip_responses.encode_infer`."""
        arrays = [outputs[wanted.name] for wanted in request.wanted]
        key = (request.wanted, *[array.shape for array in arrays])
        answer = self._answers.get(key)
        if answer is None:
            if not all(map(_is_plain, request.wanted, arrays)):
                return self._encode(request, outputs)
            answer = self._write(key, request, outputs)
        before, behind = answer
        said = b'"id":' + orjson.dumps(request.id) + b"," if request.id else b""
        data = [to_raw(array) for array in arrays]
        return len(before) + len(said) + len(behind), b"".join((before, said, behind, *data))

    def _encode(self, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> tuple[int | None, bytes]:
        return encode_infer(
            self._model,
            self._version,
            request,
            outputs,
            batched=self._tensors.batched,
            non_finite=self._non_finite,
        )

    def _write(self, key: Any, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> _Answer:
        """Write an answer without its id, and remember it."""
        json_bytes, body = self._encode(InferRequest("", {}, request.wanted), outputs)
        text = body[:json_bytes]
        place = text.index(b'"outputs":')
        if len(self._answers) >= _MAX_FORMS:
            self._answers.clear()
        answer = self._answers[key] = _Answer(text[:place], text[place:])
        return answer


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _is_plain(wanted: WantedOutput, array: np.ndarray) -> bool:
    """Whether an output is given as it is, as bytes whose number follows from its shape."""
    given = wanted.binary and not wanted.classes and array.dtype != object and array.size > 0
    return given and not isinstance(wanted, RegionOutput)
