"""TensorFlow Serving's services: Predict, Classify and Regress as dialects of scoring, and metadata of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody, NotSupported, StokerError, cut
from stoker.gateway.grpc.calls import BEARER_METADATA, RpcCall
from stoker.gateway.grpc.infer import GrpcDialect, InferDispatcher
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance
from stoker.gateway.http.requests import Requester
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.infer import signatures_of
from stoker.gateway.protocols.tfs import DTYPES, describe_signatures, describe_versions, find_version
from stoker.gateway.scoring.call_options import read_call_options
from stoker.gateway.scoring.caller_identity import identify_caller
from stoker.gateway.scoring.dialects import submit_tensors
from stoker.system.wording import format_count
from stoker.tensors import TensorInfo
from stoker.wire.oip_tensors import MAX_AXES, check_fit, from_raw
from stoker.wire.packed import check_string_count, has_too_many_elements
from stoker.wire.protobuf import BYTES, MalformedMessage, field, fields_of, read_varint
from stoker.wire.tensor_json import as_dtype, check_rows
from stoker.wire.tfs import as_sent, complete_axes, named_signature
from stoker.wire.tfs_examples import MAX_REPEATED, Verb, results_of, takes_examples

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.inference import Inference
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, ServiceBase
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms
    from stoker.tensors import ModelTensors, NamedSignature
    from stoker.wire.script_requests import RequestHead

_Proto: Final = message("TensorProto", SERVING)
_TYPES: Final[dict[str, int]] = {
    name: _Proto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name[word].number
    for name, word in DTYPES.items()
}
_WORDS: Final = {number: DTYPES[name] for name, number in _TYPES.items()}
_FIELDS: Final = {
    "bool": "bool_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "int64": "int64_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "float32": "float_val",
    "float64": "double_val",
    "string": "string_val",
}
"""The field of the elements of each dtype."""

_CONTENT: Final = 4
_FLAT: Final = {"float32": (5, "<f4"), "float64": (6, "<f8")}
"""Fields whose bytes on the wire are those of an array, and their layout."""

_MAX_TENSOR_PARTS: Final = 64
"""A tensor with more fields has one element in each; the library reads it."""
_MAX_TYPED_BYTES: Final = 8 << 20


class TensorBytes(NamedTuple):
    """The place of a `TensorProto` in a message."""

    message: bytes
    begin: int
    end: int


class _Read(NamedTuple):
    """A `TensorProto`: views of its contents, and the rest as the library has read it."""

    content: memoryview | None
    flat: dict[int, list[memoryview]]
    rest: Any


def read_tensor(model: str, info: TensorInfo, given: TensorBytes) -> np.ndarray:
    """Return a tensor as an array, shaped as sent; an array of numbers may be a read-only view of the message.

    As in TensorFlow, missing elements are filled with the last one, or with zeros if there is none.
    """
    read = _parse(info, given)
    shape = _checked_shape(model, info, read.rest)
    if read.content is not None:
        if info.dtype == "string":
            return _read_strings(info, bytes(read.content), math.prod(shape)).reshape(shape)
        return from_raw(model, info, shape, read.content)
    elements = _elements(info, read)
    count = math.prod(shape)
    if len(elements) > count:
        raise MalformedBody(
            f"input '{info.name}' of model '{model}' has {format_count(len(elements), 'element')}, but its shape "
            f"{list(shape)} needs {count}"
        )
    if len(elements) < count:
        elements = _fill(info, elements, count)
    return elements.reshape(shape)


def _parse(info: TensorInfo, given: TensorBytes) -> _Read:
    data, begin, end = given
    try:
        parts = list(islice(fields_of(data, begin, end), _MAX_TENSOR_PARTS + 1))
    except (MalformedMessage, IndexError):
        raise MalformedBody(f"the tensor of input '{info.name}' cannot be read") from None
    view = memoryview(data)
    content: memoryview | None = None
    flat: dict[int, list[memoryview]] = {5: [], 6: []}
    rest = [view[begin:end]]
    if len(parts) <= _MAX_TENSOR_PARTS:
        rest, at = [], begin
        for number, wire, _, start, stop in parts:
            if wire == BYTES and number == _CONTENT:
                # Empty contents count as absent.
                content = view[start:stop] if stop > start else None
            elif wire == BYTES and number in flat:
                flat[number].append(view[start:stop])
            else:
                rest.append(view[at:stop])
            at = stop
    if sum(map(len, rest)) > _MAX_TYPED_BYTES:
        raise BodyTooLarge(
            f"elements one by one above {_MAX_TYPED_BYTES >> 20} MiB are not read: send input '{info.name}' as "
            "tensor_content"
        )
    try:
        return _Read(content, flat, _Proto.FromString(b"".join(rest)))
    except DecodeError:
        raise MalformedBody(f"the tensor of input '{info.name}' cannot be read") from None


def _read_strings(info: TensorInfo, content: bytes, count: int) -> np.ndarray:
    """Return strings of `tensor_content`: first the lengths of all, then their bytes one after the other."""
    strings, at, sizes = np.empty(count, object), 0, []
    try:
        for _ in range(count):
            size, at = read_varint(content, at)
            sizes.append(size)
    except (MalformedMessage, IndexError):
        sizes = [-1]
    if at + sum(sizes) != len(content) or len(sizes) != count:
        raise MalformedBody(f"the tensor_content of input '{info.name}' does not hold {count} strings")
    for index, size in enumerate(sizes):
        strings[index] = content[at : at + size]
        at += size
    return strings


def _checked_shape(model: str, info: TensorInfo, proto: Any) -> tuple[int, ...]:
    if proto.dtype != _TYPES[info.dtype]:
        came = _WORDS.get(proto.dtype, f"type {cut(str(proto.dtype))}")
        raise InvalidInput(f"input '{info.name}' is {came}, but model '{model}' expects {DTYPES[info.dtype]}")
    dims = proto.tensor_shape.dim
    if proto.tensor_shape.unknown_rank or len(dims) > MAX_AXES:
        raise MalformedBody(f"the shape of input '{info.name}' is unknown, or has more than {MAX_AXES} axes")
    shape = tuple(dim.size for dim in dims)
    if min(shape, default=0) < 0 or has_too_many_elements(shape):
        raise MalformedBody(f"the shape of input '{info.name}' has negative sizes, or too many elements")
    if info.dtype == "string":
        check_string_count(math.prod(shape))
    if info.completed(shape) is None:
        check_fit(model, info, shape)
    return shape


def _elements(info: TensorInfo, read: _Read) -> np.ndarray:
    values = getattr(read.rest, _FIELDS[info.dtype])
    if info.dtype in _FLAT:
        return _flat_elements(info, read, values)
    if info.dtype == "string":
        check_string_count(len(values))
        texts = np.empty(len(values), object)
        texts[:] = list(values)
        return texts
    if _FIELDS[info.dtype] == "half_val":
        halves = as_dtype(np.fromiter(values, np.int32, len(values)), TensorInfo(info.name, "uint16", (-1,)))
        return halves.view(info.dtype)
    wide = np.int32 if _FIELDS[info.dtype] == "int_val" else info.dtype
    return as_dtype(np.fromiter(values, wide, len(values)), info)


def _flat_elements(info: TensorInfo, read: _Read, values: Any) -> np.ndarray:
    number, layout = _FLAT[info.dtype]
    packed = read.flat[number]
    if len(packed) == 1 and not values:
        joined: bytes | memoryview = packed[0]
    else:
        # Mixed forms have no common order, only the order in each form.
        joined = b"".join(packed) + np.fromiter(values, layout, len(values)).tobytes()
    if len(joined) % np.dtype(layout).itemsize:
        raise MalformedBody(f"the elements of input '{info.name}' end within one")
    return np.frombuffer(joined, layout)


def _fill(info: TensorInfo, elements: np.ndarray, count: int) -> np.ndarray:
    if count * max(elements.itemsize, 1) > _MAX_TYPED_BYTES:
        raise BodyTooLarge(
            f"input '{info.name}' has fewer elements than its shape, which is filled up to "
            f"{_MAX_TYPED_BYTES >> 20} MiB: send it as tensor_content"
        )
    nothing: Any = b"" if info.dtype == "string" else 0
    filled = np.empty(count, elements.dtype)
    filled[: len(elements)] = elements
    filled[len(elements) :] = elements[-1] if len(elements) else nothing
    return filled


def tensor_bytes(array: np.ndarray) -> bytes:
    """Return an array (strings: `object` of `bytes`) as a `TensorProto`, its elements in the field of their dtype."""
    name = "string" if array.dtype == object else array.dtype.name
    proto = _Proto(dtype=_TYPES[name])
    # Present even for a scalar, which has no axes.
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if name in _FLAT:
        number, layout = _FLAT[name]
        content = np.ascontiguousarray(array, layout).tobytes()
        head: bytes = proto.SerializeToString()
        return head + field(number, content) if content else head
    values = array.reshape(-1)
    if _FIELDS[name] == "half_val":
        values = np.ascontiguousarray(values).view(np.uint16)
    getattr(proto, _FIELDS[name]).extend(values.tolist())
    whole: bytes = proto.SerializeToString()
    return whole


_Spec: Final = message("ModelSpec", SERVING)
_UNREADABLE: Final = "the message is no request of this method"
_MAX_PARTS: Final = 10_000
"""The most inputs and outputs of a request."""
_MAX_ENTRY_PARTS: Final = 16
_MAX_EXAMPLES: Final = 1 << 16
_MAX_SPEC_BYTES: Final = 1 << 16
_SPEC: Final = 1
_INPUTS, _FILTER = 2, 3
_KEY, _VALUE = 1, 2
_INPUT: Final = 2
_LIST, _LIST_WITH_CONTEXT = 1, 2
_EXAMPLES, _CONTEXT = 1, 2


class ModelSpec(NamedTuple):
    """The model that a request is for; version, label and signature are empty where it names none."""

    model_name: str
    model_version: str
    label: str
    signature_name: str


def spec_from_proto(proto: Any) -> ModelSpec:
    """Convert a `ModelSpec` message."""
    version = str(proto.version.value) if proto.HasField("version") else ""
    return ModelSpec(proto.name, version, proto.version_label, proto.signature_name)


class PredictMessage(NamedTuple):
    """A `PredictRequest`; `wanted` are the requested outputs, none for all."""

    spec: ModelSpec
    inputs: dict[str, TensorBytes]
    wanted: tuple[str, ...]

    @classmethod
    def read(cls, content: bytes) -> PredictMessage:
        """Read a message without copying its tensors."""
        specs, inputs, wanted = list[bytes](), {}, []
        for number, begin, end in _parts(content, 0, len(content), _MAX_PARTS):
            if number == _SPEC:
                specs.append(content[begin:end])
            elif number == _INPUTS:
                name, tensor = _entry(content, begin, end)
                inputs[name] = tensor
            elif number == _FILTER:
                wanted.append(_text(content[begin:end]))
        return cls(_read_spec(b"".join(specs)), inputs, tuple(wanted))


class ExamplesMessage(NamedTuple):
    """A `ClassificationRequest` or `RegressionRequest`.

    Attributes:
        context: A serialized example whose features are added to all examples; empty for none.
    """

    spec: ModelSpec
    examples: list[bytes]
    context: bytes

    @classmethod
    def read(cls, content: bytes) -> ExamplesMessage:
        """Read a message."""
        parts = list(_parts(content, 0, len(content), _MAX_PARTS))
        spec = b"".join(content[begin:end] for number, begin, end in parts if number == _SPEC)
        inputs = [(begin, end) for number, begin, end in parts if number == _INPUT]
        if len(inputs) != 1:
            raise MalformedBody("Input is empty: the message needs one")
        return cls(_read_spec(spec), *_examples(content, *inputs[0]))


def _examples(content: bytes, begin: int, end: int) -> tuple[list[bytes], bytes]:
    kinds = list(_parts(content, begin, end, _MAX_ENTRY_PARTS))
    if len(kinds) != 1 or kinds[0][0] not in (_LIST, _LIST_WITH_CONTEXT):
        raise MalformedBody("Input is empty: it has an example_list, or an example_list_with_context")
    kind, start, stop = kinds[0]
    parts = list(_parts(content, start, stop, _MAX_EXAMPLES))
    examples = [content[at:until] for number, at, until in parts if number == _EXAMPLES]
    if not examples:
        raise MalformedBody("Input is empty: it has no examples")
    if kind == _LIST:
        return examples, b""
    # Concatenated messages are one message with the fields of both.
    return examples, b"".join(content[at:until] for number, at, until in parts if number == _CONTEXT)


def _entry(content: bytes, begin: int, end: int) -> tuple[str, TensorBytes]:
    name, tensor = "", TensorBytes(b"", 0, 0)
    for number, start, stop in _parts(content, begin, end, _MAX_ENTRY_PARTS):
        if number == _KEY:
            name = _text(content[start:stop])
        elif number == _VALUE:
            tensor = TensorBytes(content, start, stop)
    return name, tensor


def _parts(content: bytes, begin: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message that have a length: number, and where the content begins and ends."""
    try:
        for count, (number, wire, _, start, stop) in enumerate(fields_of(content, begin, end)):
            if count == most:
                raise BodyTooLarge(f"the message has more than {most} parts")
            if wire == BYTES:
                yield number, start, stop
    except (MalformedMessage, IndexError):
        raise MalformedBody(_UNREADABLE) from None


def _read_spec(content: bytes) -> ModelSpec:
    if len(content) > _MAX_SPEC_BYTES:
        raise BodyTooLarge("the model_spec is too long")
    try:
        spec = spec_from_proto(_Spec.FromString(content))
    except DecodeError:
        raise MalformedBody(_UNREADABLE) from None
    if not spec.model_name:
        raise MalformedBody("Missing ModelSpec: name the model in model_spec.name")
    return spec


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise MalformedBody(_UNREADABLE) from None


# TensorFlow Serving's PredictionService: Predict, Classify and Regress as dialects of scoring.
_Classified: Final = message("ClassificationResponse", SERVING)
_Regressed: Final = message("RegressionResponse", SERVING)
_OUTPUTS, _ANSWER_SPEC = 1, 2


class _ServingDialect(GrpcDialect):
    """The common part of the three: `Call.context` is the message, and `submit` sets `Call.write`."""

    __slots__ = ()

    read: Callable[[bytes], PredictMessage | ExamplesMessage]
    """Reads a message; raises StokerError if it is invalid."""

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        _, content = call.write(outputs)
        call.answer_bare(content)


class _Predict(_ServingDialect):
    """Tensors in, tensors out."""

    __slots__ = ()

    read = staticmethod(PredictMessage.read)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del body, head
        request: PredictMessage = call.context
        service = call.service
        signature = _signature(service, request.spec)
        inputs, sent_axes = complete_axes(
            _inputs(service.name, signature.tensors, request), signature.tensors
        )
        check_rows(inputs, signature.tensors)
        wanted = _wanted_outputs(signature, request)
        spec: bytes = spec_of_answer(service, signature.name).SerializeToString()
        call.write = partial(_encode_prediction, wanted, sent_axes, spec)
        submit_tensors(call, exchange, inputs, signature.name)


class _Examples(_ServingDialect):
    """Serialized examples in, labels with scores or numbers out."""

    __slots__ = ("_verb",)

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    read = staticmethod(ExamplesMessage.read)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del body, head
        request: ExamplesMessage = call.context
        service = call.service
        signature = _signature(service, request.spec)
        if not takes_examples(service.name, self._verb, signature):
            raise InvalidInput(
                f"'{service.name}' cannot {self._verb} over gRPC by its signature {signature.name}: that takes "
                "tensors, call Predict"
            )
        if len(request.context) * len(request.examples) > MAX_REPEATED:
            raise BodyTooLarge(
                f"The context, repeated for each example, has more than {MAX_REPEATED} bytes; send the examples in "
                "parts, or without a context."
            )
        examples = np.empty(len(request.examples), object)
        # An example follows its context, so its features take precedence.
        examples[:] = [request.context + example for example in request.examples]
        inputs = {signature.tensors.inputs[0].name: examples}
        check_rows(inputs, signature.tensors)
        call.write = partial(
            self._results, signature, spec_of_answer(service, signature.name), len(request.examples)
        )
        submit_tensors(call, exchange, inputs, signature.name)

    def _results(
        self, signature: NamedSignature, spec: Any, examples: int, outputs: Mapping[str, np.ndarray]
    ) -> tuple[bytes, bytes]:
        results = results_of(self._verb, signature, outputs, examples)
        response: Any
        if self._verb == "regress":
            response = _Regressed(model_spec=spec)
            response.result.SetInParent()
            for value in results.tolist():
                response.result.regressions.add(value=value)
        else:
            response = _Classified(model_spec=spec)
            response.result.SetInParent()
            for pairs in results:
                classes = response.result.classifications.add().classes
                for label, score in pairs:
                    classes.add(label=label, score=score)
        return b"", response.SerializeToString()


_DIALECTS: Final[dict[str, _ServingDialect]] = {
    "Predict": _Predict(),
    "Classify": _Examples("classify"),
    "Regress": _Examples("regress"),
}


class ServingDispatcher:
    """Finds the services for calls of one of the three methods, as `scoring` does for the Open Inference Protocol."""

    def __init__(self, gateway: Gateway, scoring: InferDispatcher, method: str) -> None:
        self._gateway, self._scoring = gateway, scoring
        self._dialect = _DIALECTS[method]
        self.check_key = scoring.check_key

    def score(self, inference: Inference, content: bytes) -> Call:
        """Hand a message to the service that it is for."""
        call = inference.call
        request = self._dialect.read(content)
        service, caller = self._find(request.spec, call)
        try:
            if len(content) > LARGE_BODY_BYTES:
                find_caller = partial(identify_caller, service, call.authorization, call.address)
                inference.cover(Allowance(self._gateway.bodies, find_caller), len(content))
            deadline_ns = call.deadline_ns()
            options = read_call_options(caller, call.head.metadata)
            if service.script is not None and service.script.yields:
                raise NotSupported(
                    f"'{service.name}' yields its answer piece by piece: call ModelStreamInfer"
                )
        except StokerError as error:
            self._gateway.report_refusal(service, call.headers(), error)
            raise
        scored = service.score_soon(content, call.ids, inference, self._dialect)
        scored.context = request
        if deadline_ns is not None:
            scored.deadline_ns = min(scored.deadline_ns, deadline_ns)
        if options is not None:
            options.apply_to(scored)
        return scored

    def _find(self, spec: ModelSpec, call: RpcCall) -> tuple[Service, CallerTerms]:
        if not spec.label:
            return self._scoring.find_plain(spec, call.authorization) or self._scoring.find(spec, call)
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = find_version(self._gateway, spec.model_name, None, spec.label)
        return self._scoring.authorize(service, call)


def spec_of_answer(service: ServiceBase, signature_name: str = "") -> Any:
    """Return the `ModelSpec` of an answer."""
    spec = _Spec(name=service.name, signature_name=signature_name)
    if service.version.isdecimal():
        spec.version.value = int(service.version)
    return spec


def _signature(service: ServiceBase, spec: ModelSpec) -> NamedSignature:
    return named_signature(signatures_of(service), {"signature_name": spec.signature_name})


def _inputs(model: str, tensors: ModelTensors, request: PredictMessage) -> dict[str, np.ndarray]:
    names = [info.name for info in tensors.inputs]
    if request.inputs.keys() != set(names):
        missing = [name for name in names if name not in request.inputs]
        wrong = f"missing: {', '.join(missing)}" if missing else "there are others"
        raise InvalidInput(f"input keys do not match the signature, which has {', '.join(names)}; {wrong}")
    return {info.name: read_tensor(model, info, request.inputs[info.name]) for info in tensors.inputs}


def _wanted_outputs(signature: NamedSignature, request: PredictMessage) -> tuple[TensorInfo, ...]:
    infos = {info.name: info for info in signature.tensors.outputs}
    if not request.wanted:
        return signature.tensors.outputs
    if not set(request.wanted) <= infos.keys() or len(set(request.wanted)) < len(request.wanted):
        raise InvalidInput(f"output_filter has others than the outputs {', '.join(infos)}, or one twice")
    return tuple(infos[name] for name in request.wanted)


def _encode_prediction(
    wanted: tuple[TensorInfo, ...], sent_axes: int | None, spec: bytes, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, bytes]:
    """No header lines, and a `PredictResponse`."""
    tensors = ((info.name, as_sent(info, outputs[info.name], sent_axes)) for info in wanted)
    parts = [
        field(_OUTPUTS, field(_KEY, name.encode()) + field(_VALUE, tensor_bytes(array)))
        for name, array in tensors
    ]
    return b"", b"".join((*parts, field(_ANSWER_SPEC, spec)))


# Metadata: the signatures of models, and the states of their versions.
_Metadata: Final = message("GetModelMetadataResponse", SERVING)
_Signatures: Final = message("SignatureDefMap", SERVING)
_ModelStatus: Final = message("GetModelStatusResponse", SERVING)
_SIGNATURES: Final = "signature_def"


class ServingMetadata:
    """Answers GetModelMetadata and GetModelStatus."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def metadata(self, request: Any, call: RpcCall) -> Any:
        """Answer a `GetModelMetadataRequest`."""
        fields = list(request.metadata_field)
        if not fields:
            raise InvalidInput("GetModelMetadataRequest must specify at least one metadata_field")
        for name in fields:
            if name != _SIGNATURES:
                raise InvalidInput(f"Metadata field {cut(name)} is not supported")
        spec = spec_from_proto(request.model_spec)
        service = find_version(self._gateway, spec.model_name, *_version(spec))
        requester = Requester(call.authorization, sent_as=BEARER_METADATA)
        check_metadata_access(self._gateway, requester, (service,))
        await service.learn_signature()
        answer = _Metadata(model_spec=spec_of_answer(service))
        answer.metadata[_SIGNATURES].Pack(ParseDict(describe_signatures(service), _Signatures()))
        return answer

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `GetModelStatusRequest`; as over HTTP, no key is needed."""
        del call
        spec = spec_from_proto(request.model_spec)
        return ParseDict(describe_versions(self._gateway, spec.model_name, *_version(spec)), _ModelStatus())


def _version(spec: ModelSpec) -> tuple[str | None, str | None]:
    """The number of the version, and else its label."""
    return spec.model_version or None, spec.label or None
