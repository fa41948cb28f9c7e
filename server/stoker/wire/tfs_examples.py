"""TensorFlow Serving's classify and regress: examples of features in, labels with scores or numbers out.

A signature for them takes serialized `tf.train.Example`, which are written here without TensorFlow: an example is a
map from names to lists of bytes, of 32-bit floats, or of 64-bit integers. Other signatures take tensors, and their
features are the inputs by name. Sources: TensorFlow Serving's REST API text and, where that is silent, its code;
`tensorflow/core/example/feature.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody, quoted
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import NamedSignature, TensorInfo
from stoker.wire.json_bodies import dump
from stoker.wire.protobuf import field, varint_bytes
from stoker.wire.tensor_json import is_base64
from stoker.wire.tfs import complete_axes, named_signature, read_document, string_of, tensor_of

Verb = Literal["classify", "regress"]

MAX_REPEATED: Final = 1 << 20
"""The limit of a context times the number of examples: values and letters, or bytes."""
_FEATURE_KINDS: Final[dict[type, str]] = {
    str: "bytes",
    dict: "bytes",
    int: "int",
    bool: "int",
    float: "float",
}


class ExamplesRequest(Struct, frozen=True):
    """A decoded classify or regress request: arrays by name; serialized examples are an `object` array of `bytes`.

    Attributes:
        examples: The number of examples; the arrays of a long body are not kept beside its answer.
    """

    signature: NamedSignature
    inputs: dict[str, np.ndarray]
    examples: int


def decode_examples(
    model: str, verb: Verb, signatures: Sequence[NamedSignature], body: bytes
) -> ExamplesRequest:
    """Decode `{"context": {...}, "examples": [{feature: value}, ...]}`; the first signature is the default."""
    document = read_document(body)
    signature = named_signature(signatures, document)
    serialized = takes_examples(model, verb, signature)
    examples, context = document.get("examples"), document.get("context", {})
    if not isinstance(examples, list) or not examples:
        raise MalformedBody("'examples' must be a non-empty array of objects")
    if not isinstance(context, dict) or not all(isinstance(example, dict) for example in examples):
        raise MalformedBody("'context' and each of 'examples' must be an object of features")
    if not serialized:
        _check_names([info.name for info in signature.tensors.inputs], context, examples)
    if sum(map(_size, context.values())) * len(examples) > MAX_REPEATED:
        raise BodyTooLarge(
            f"The context, repeated for each example, holds more than {MAX_REPEATED} values or letters; send the "
            "examples in parts, or without a context."
        )
    infos = signature.tensors.inputs
    if serialized:
        return ExamplesRequest(signature, {infos[0].name: _serialized(context, examples)}, len(examples))
    features = {info.name: _feature(info, context, examples) for info in infos}
    inputs, _ = complete_axes(features, signature.tensors)
    return ExamplesRequest(signature, inputs, len(examples))


def _is_made_for(verb: Verb, signature: NamedSignature) -> bool:
    """Return whether a signature takes examples by its method or, if it comes from TensorFlow 2, by its names."""
    if signature.method != "predict":
        return True
    inputs, outputs = (
        [info.name for info in side] for side in (signature.tensors.inputs, signature.tensors.outputs)
    )
    given = set(outputs) <= {"classes", "scores"} if verb == "classify" else outputs == ["outputs"]
    return given and inputs == ["inputs"] and signature.tensors.inputs[0].dtype == "string"


def takes_examples(model: str, verb: Verb, signature: NamedSignature) -> bool:
    """Return whether a signature takes serialized examples; otherwise it takes tensors."""
    tensors = signature.tensors
    if not _is_made_for(verb, signature):
        if len(tensors.outputs) != 1 or not tensors.batched or tensors.outputs[0].dtype == "string":
            raise InvalidInput(f"'{model}' cannot {verb}: that needs one output of numbers for each example")
        return False
    if signature.method not in ("predict", verb):
        raise InvalidInput(
            f"'{model}' cannot {verb} by its signature {signature.name}: it is for {signature.method}"
        )
    if [info.dtype for info in tensors.inputs] != ["string"] or not (
        tensors.inputs[0].any_rank or len(tensors.inputs[0].shape) == 1
    ):
        raise InvalidInput(
            f"'{model}' cannot {verb} by its signature {signature.name}: that takes no vector of serialized examples"
        )
    return True


def _serialized(context: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return each example with the features of the context that it lacks, `object[examples]` of `bytes`."""
    shared = {name: _entry(name, value) for name, value in context.items()}
    array = np.empty(len(examples), object)
    array[:] = [
        example_of(
            [
                *(entry for name, entry in shared.items() if name not in example),
                *(_entry(name, value) for name, value in example.items()),
            ]
        )
        for example in examples
    ]
    return array


def _entry(name: str, value: Any) -> bytes:
    values = value if isinstance(value, list) else [value]
    kinds = _kinds(name, values)
    if len(kinds) > 1:
        raise _several_types(name)
    try:
        return entry_of(name, _values(name, kinds, values))
    except OverflowError:
        raise InvalidInput(f"a number of feature {quoted(name)} does not fit") from None


def _values(name: str, kinds: set[str | None], values: list[Any]) -> Feature:
    if "bytes" in kinds:
        return [string_of(value, name) for value in values]
    return [int(value) for value in values] if "int" in kinds else values


def _check_names(
    names: Sequence[str], context: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]
) -> None:
    known = set(names)
    missing, unknown = known - context.keys(), context.keys() - known
    for index, example in enumerate(examples):
        if unknown or not missing <= example.keys() or not example.keys() <= known:
            raise InvalidInput(f"example {index} must have the features {', '.join(names)}")


def _size(feature: Any) -> int:
    """Return the number of values of a feature, plus the letters of texts."""
    values = feature if isinstance(feature, list) else [feature]
    texts = (value["b64"] if is_base64(value) else value for value in values)
    return 1 + sum(1 + len(text) if isinstance(text, str) else 1 for text in texts)


def _feature(
    info: TensorInfo, context: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]
) -> np.ndarray:
    """Return one input of all examples; features from the context are read once."""
    own = [example[info.name] for example in examples if info.name in example]
    if len(own) == len(examples):
        return _feature_tensor(own, info)
    tensor = _feature_tensor([context[info.name], *own], info)
    has_own = np.array([info.name in example for example in examples])
    shared: np.ndarray = tensor[np.where(has_own, np.cumsum(has_own), 0)]
    return shared


def _feature_tensor(features: list[Any], info: TensorInfo) -> np.ndarray:
    """A feature is a value or a list of values of one kind: integers, floats, or strings."""
    listed = [feature if isinstance(feature, list) else [feature] for feature in features]
    values = list(chain.from_iterable(listed))
    if len(_kinds(info.name, values)) > 1:
        for feature in listed:
            if len(_kinds(info.name, feature)) > 1:
                raise _several_types(info.name)
    if info.dtype != "bool" and bool in set(map(type, values)):
        listed = [[int(v) if isinstance(v, bool) else v for v in feature] for feature in listed]
    if len(info.shape) == 1:
        return tensor_of([feature[0] if len(feature) == 1 else feature for feature in listed], info)
    return tensor_of(listed, info)


def _several_types(name: str) -> InvalidInput:
    return InvalidInput(
        f"Unexpected element type in feature {quoted(name)}: one list holds values of several types"
    )


def _kinds(name: str, values: list[Any]) -> set[str | None]:
    types = set(map(type, values))
    kinds = {_FEATURE_KINDS.get(kind) for kind in types}
    if None in kinds or (dict in types and not all(isinstance(v, str) or is_base64(v) for v in values)):
        raise InvalidInput(f"feature {quoted(name)} must hold numbers or strings")
    return kinds


def encode_results(
    verb: Verb, request: ExamplesRequest, outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS
) -> bytes:
    """Encode the answer of classify (pairs of label and score) or regress (numbers)."""
    return dump({"results": results_of(verb, request.signature, outputs, request.examples)}, non_finite)


def results_of(
    verb: Verb, signature: NamedSignature, outputs: Mapping[str, np.ndarray], examples: int
) -> Any:
    """Return for each example its pairs of label and score, as lists, or its number, as a vector."""
    results = _results_of(verb, signature, outputs)
    if len(results) != examples:
        raise InvalidInput(f"the model gives {len(results)} results for {examples} examples")
    return results


def _results_of(verb: Verb, signature: NamedSignature, outputs: Mapping[str, np.ndarray]) -> Any:
    if not _is_made_for(verb, signature):
        (only,) = outputs.values()
        return _classified(_matrix(only), None) if verb == "classify" else _regressed(only)
    if verb == "classify":
        classes, scores = outputs.get("classes"), outputs.get("scores")
        return _classified(
            None if scores is None else _matrix(scores), None if classes is None else _matrix(classes)
        )
    if "outputs" in outputs:
        return _regressed(outputs["outputs"])
    raise InvalidInput(f"the signature {signature.name} has no output 'outputs'")


def _regressed(output: np.ndarray) -> np.ndarray:
    if output.dtype == object or output.ndim not in (1, 2) or output.size != len(output):
        raise InvalidInput(f"regress needs one number a row, the model gives the shape {list(output.shape)}")
    return np.ascontiguousarray(output.reshape(-1))


def _matrix(output: np.ndarray) -> np.ndarray:
    if output.ndim != 2:
        raise InvalidInput(f"classify needs a vector of scores a row, the model gives {list(output.shape)}")
    return output


def _classified(scores: np.ndarray | None, classes: np.ndarray | None) -> list[Any]:
    """Return pairs of label and score: without classes labels are indices, without scores these are 0."""
    if scores is None and classes is None:
        raise InvalidInput("classify needs an output 'classes' or 'scores'; the signature has none")
    if scores is None:
        assert classes is not None, "one of both is there"
        scores = np.zeros(classes.shape, np.float32)
    if scores.dtype == object or (classes is not None and classes.shape != scores.shape):
        raise InvalidInput("classify needs numbers as 'scores', and as many 'classes'")
    if classes is None:
        names = list(map(str, range(scores.shape[1])))
        return [[list(pair) for pair in zip(names, row, strict=True)] for row in scores]
    labels = [[_label(label) for label in row] for row in classes.tolist()]
    return [[list(pair) for pair in zip(*row, strict=True)] for row in zip(labels, scores, strict=True)]


def _label(label: Any) -> str:
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


Feature = Sequence[Any]
"""The values of a feature, all of them `bytes`, `float` or `int`; a list of none has no type."""

# Every field here holds bytes or a message: wire type 2.
_FEATURES: Final = 1
_ENTRY: Final = 1
_KEY, _VALUE = 1, 2
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_LIST_VALUE: Final = 1
_INT64_MASK: Final = (1 << 64) - 1


def example_of(entries: Iterable[bytes]) -> bytes:
    """Return an example with the entries of `entry_of`; the last one of each name counts."""
    return field(_FEATURES, b"".join(entries))


def entry_of(name: str, values: Feature) -> bytes:
    """Return a feature under its name; raise OverflowError if a number does not fit its type."""
    key = field(_KEY, name.encode(errors="surrogatepass"))
    return field(_ENTRY, key + field(_VALUE, _feature_field(values)))


def _feature_field(values: Feature) -> bytes:
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return field(_BYTES_LIST, b"".join(field(_LIST_VALUE, value) for value in values))
    if isinstance(values[0], float):
        return field(_FLOAT_LIST, field(_LIST_VALUE, struct.pack(f"<{len(values)}f", *values)))
    return field(_INT64_LIST, field(_LIST_VALUE, b"".join(map(_int64, values))))


def _int64(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError("an integer does not fit 64 bits")
    # Negative numbers are written as two's complement, in ten bytes.
    return varint_bytes(value & _INT64_MASK)
