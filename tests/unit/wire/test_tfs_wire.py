"""TensorFlow Serving's REST bodies."""

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody, RequestError
from stoker.tensors import Method, ModelTensors, NamedSignature, TensorInfo
from stoker.wire.tfs import PredictRequest, decode_predict, encode_predict
from stoker.wire.tfs_examples import (
    ExamplesRequest,
    Verb,
    decode_examples,
    encode_results,
    entry_of,
    example_of,
)

X = TensorInfo("x", "float32", (-1, 2))
IDS = TensorInfo("ids", "int32", (-1,))
WORDS = TensorInfo("words", "string", (-1,))
RATE = TensorInfo("rate", "float64", ())


def model(*inputs: TensorInfo, outputs: tuple[str, ...] = ("y",), batched: bool = True) -> ModelTensors:
    """A model with these inputs and outputs."""
    return ModelTensors(inputs, tuple(TensorInfo(name, "float32", (-1, -1)) for name in outputs), batched)


def only(tensors: ModelTensors, method: Method = "predict") -> list[NamedSignature]:
    """The signatures of a model with one."""
    return [NamedSignature("serving_default", tensors, method)]


def predict(tensors: ModelTensors, **document: Any) -> PredictRequest:
    """Decode a predict request."""
    return decode_predict(only(tensors), json.dumps(document).encode())


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ({"instances": [[1, 2], [3, 4]]}, True),
        ({"instances": [{"x": [1, 2]}, {"x": [3, 4]}], "signature_name": "serving_default"}, True),
        ({"inputs": [[1, 2], [3, 4]], "signature_name": "", "more": 1}, False),
        ({"inputs": {"x": [[1, 2], [3, 4]]}}, False),
    ],
)
def test_rows_and_columns_of_one_input(document: dict[str, Any], rows: bool) -> None:
    """With and without its name."""
    request = predict(model(X), **document)
    assert request.rows is rows
    assert request.inputs["x"].dtype == np.float32
    assert request.inputs["x"].tolist() == [[1, 2], [3, 4]]


def test_several_inputs_have_names() -> None:
    """Row by row as objects, or column by column as one object; a column model may have scalars."""
    tensors = model(X, IDS, WORDS)
    by_rows = predict(tensors, instances=[{"x": [1, 2], "ids": 7, "words": {"b64": "/w=="}}])
    by_columns = predict(tensors, inputs={"x": [[1, 2]], "ids": [7], "words": [{"b64": "/w=="}]})
    for request in (by_rows, by_columns):
        assert {name: array.tolist() for name, array in request.inputs.items()} == {
            "x": [[1, 2]],
            "ids": [7],
            "words": [b"\xff"],
        }
    scalar = predict(model(RATE, batched=False), inputs=2)
    assert scalar.inputs["rate"].shape == ()


COLUMN = TensorInfo("c", "float32", (-1, 1))


@pytest.mark.parametrize(
    ("inputs", "outputs", "document", "answer"),
    [
        ((COLUMN,), [(-1, 1)], {"instances": [1, 2]}, {"predictions": [1, 2]}),
        ((COLUMN,), [(-1, 1)], {"instances": [{"c": 1}, {"c": 2}]}, {"predictions": [1, 2]}),
        ((COLUMN,), [(-1, 1)], {"instances": [[1], [2]]}, {"predictions": [[1], [2]]}),
        ((COLUMN,), [(-1, 1)], {"inputs": {"c": [1, 2]}}, {"outputs": [1, 2]}),
        ((COLUMN,), [(-1, 1)], {"inputs": 1}, {"outputs": 1}),
        ((COLUMN,), [(-1,)], {"inputs": [1]}, {"outputs": [1]}),
        ((COLUMN,), [(-1, 2)], {"inputs": [1, 2]}, {"outputs": [[1, 1], [2, 2]]}),
        ((COLUMN,), [(-1, -1)], {"inputs": [1, 2]}, {"outputs": [[1], [2]]}),
        (
            (COLUMN,),
            [(-1, 1), (-1,)],
            {"instances": [1, 2]},
            {"predictions": [{"y0": 1, "y1": 1}, {"y0": 2, "y1": 2}]},
        ),
        (
            (TensorInfo("c", "float32", (-1, 1, 1)),),
            [(-1, 1, 1)],
            {"inputs": [[1], [2]]},
            {"outputs": [[1], [2]]},
        ),
        ((TensorInfo("c", "float32", (-1,)),), [(-1,)], {"inputs": 1}, {"outputs": 1}),
        ((COLUMN, X), [(-1, 1)], {"instances": [{"c": 1, "x": [0, 0]}]}, {"predictions": [[1]]}),
    ],
)
def test_omitted_axes_of_size_1_are_absent_from_elementwise_outputs(
    inputs: tuple[TensorInfo, ...],
    outputs: list[tuple[int, ...]],
    document: dict[str, Any],
    answer: dict[str, Any],
) -> None:
    """The first example of TensorFlow Serving sends numbers to a model of rows of one number."""
    infos = tuple(TensorInfo(f"y{index}", "float32", shape) for index, shape in enumerate(outputs))
    request = predict(ModelTensors(inputs, infos, batched=True), **document)
    assert [array.ndim for array in request.inputs.values()] == [len(info.shape) for info in inputs]
    rows = request.inputs["c"].reshape(-1, *[1] * (len(inputs[0].shape) - 1))
    given = {
        info.name: np.repeat(rows, max(info.shape[-1], 1), -1) if len(info.shape) > 1 else rows.reshape(-1)
        for info in infos
    }
    assert json.loads(encode_predict(request, given)) == answer


@pytest.mark.parametrize("encoded", ["/wA=", "/wA", "/w\nA=\r\n", " /wA "])
def test_strings_are_text_or_base64(encoded: str) -> None:
    """An object with exactly the key b64 stands for bytes, with or without padding and lines."""
    request = predict(model(WORDS), instances=["é", {"b64": encoded}])
    assert request.inputs["words"].tolist() == ["é".encode(), b"\xff\0"]


def test_bytes_behind_the_first_value_are_ignored() -> None:
    """Bytes after the first JSON value are ignored and NaN is read, as by TensorFlow Serving."""
    array = decode_predict(only(model(X)), b' {"instances": [[NaN, -Infinity]]} {"more').inputs["x"]
    np.testing.assert_array_equal(array, [[np.nan, -np.inf]])


@pytest.mark.parametrize(
    ("inputs", "document", "complaint"),
    [
        ((RATE,), {"instances": [2]}, "one value for all rows"),
        ((X,), {"inputs": 1}, "got the shape []"),
        ((X,), {}, "Missing 'inputs' or 'instances' key"),
        ((X,), {"inputs": [[1, 2]], "instances": [[1, 2]]}, "both"),
        ((X,), {"instances": []}, "No values in 'instances' array"),
        ((X,), {"instances": 1}, "must be an array"),
        ((X,), {"instances": [[1, 2]], "signature_name": 1}, "must be a string value"),
        ((X,), {"instances": [[1, 2]], "signature_name": "no"}, 'name: "no" not found in signature def'),
        (
            (X,),
            {"instances": [[1, 2], [3]]},
            "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
        ),
        ((X,), {"instances": [[1, [2]]]}, "Encountered list at unexpected size"),
        ((X,), {"instances": [[1, 2, 3]]}, "got the shape [1, 3]"),
        ((X,), {"instances": [["a", 2]]}, 'JSON Value: "a" Type: String is not of expected type: float32'),
        ((X,), {"instances": [[True, 2]]}, "Type: True is not of expected type"),
        ((X,), {"instances": [[None, 2]]}, "Type: Null is not of expected type"),
        ((X,), {"instances": [[{}, 2]]}, "Type: Object is not of expected type"),
        ((X,), {"instances": [[1e39, 2]]}, "too large"),
        ((X,), {"instances": [[2**9999, 2]]}, None),
        ((X,), {"instances": [{"x": [1, 2], "y": 1}]}, "item 0 is not one"),
        ((X,), {"instances": [{"x": [1, 2]}, [3, 4]]}, "item 1 is not one"),
        ((IDS,), {"instances": [1.0]}, "not of expected type: int32"),
        ((IDS,), {"instances": [2**31]}, "does not fit int32"),
        ((IDS,), {"instances": [2**63]}, "does not fit int32"),
        ((IDS,), {"instances": [2**80]}, "not of expected type: int32"),
        ((WORDS,), {"instances": [1]}, "not of expected type: string"),
        ((WORDS,), {"instances": [{"b64": "a"}]}, "base64"),
        ((WORDS,), {"instances": [{"b64": "/w==", "x": 1}]}, "item 0 is not one"),
        ((X, IDS), {"instances": [[1, 2]]}, "item 0 is not one"),
        ((X, IDS), {"inputs": [[1, 2]]}, "must be an object"),
        ((X, IDS), {"inputs": {"x": [[1, 2]]}}, "Missing named input: ids"),
        ((X, IDS), {"inputs": {"x": [[1, 2]], "ids": [1, 2]}}, "same number of rows"),
    ],
)
def test_instances_that_do_not_fit_are_refused(
    inputs: tuple[TensorInfo, ...], document: dict[str, Any], complaint: str | None
) -> None:
    """Decoding is strict and coerces nothing."""
    with np.errstate(over="raise"), pytest.raises(RequestError) as refused:
        predict(model(*inputs), **document)
    assert complaint is None or complaint in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 200_000, b"nul"])
def test_body_that_is_no_json_object_is_malformed(body: bytes) -> None:
    """The error has TensorFlow Serving's words."""
    with pytest.raises(MalformedBody, match="JSON"):
        decode_predict(only(model(X)), body)


@STEADY
@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=9)
)
def test_random_instances_give_a_tensor_or_a_refusal(value: Any) -> None:
    """This holds for any JSON in their place."""
    try:
        with np.errstate(over="raise"):
            assert predict(model(X), instances=value).inputs["x"].shape[1] == 2
    except RequestError:
        return


def outputs_of(tensors: ModelTensors, arrays: Sequence[Any], *, rows: bool) -> Any:
    """The answer with these outputs."""
    (signature,) = only(tensors)
    outputs = dict(zip([info.name for info in tensors.outputs], arrays, strict=True))
    return json.loads(encode_predict(PredictRequest(signature, {}, rows), outputs), parse_constant=str)


def test_answers_come_in_the_format_of_the_request() -> None:
    """One output alone, several by name; row by row, or column by column."""
    one, two = model(X), model(X, outputs=("y", "raw_bytes"))
    y = np.array([[0.1, np.nan], [4, 5]], np.float32)
    words = np.empty(2, object)
    words[:] = [b"a", b"\xff"]
    assert outputs_of(one, [y], rows=True)["predictions"][0][1] == "NaN"
    assert outputs_of(one, [y[1:]], rows=True) == {"predictions": [[4.0, 5.0]]}
    assert outputs_of(one, [y[1:]], rows=False) == {"outputs": [[4.0, 5.0]]}
    assert outputs_of(two, [y[1:], words[1:]], rows=True) == {
        "predictions": [{"y": [4.0, 5.0], "raw_bytes": {"b64": "/w=="}}]
    }
    assert outputs_of(two, [y[1:], words[:1]], rows=False) == {
        "outputs": {"y": [[4.0, 5.0]], "raw_bytes": [{"b64": "YQ=="}]}
    }


def test_floats_are_short() -> None:
    """A float32 is written with the digits that it has, and whole ones keep their point."""
    request = predict(model(X), instances=[[1, 2]])
    text = encode_predict(request, {"y": np.array([[0.1, 4]], np.float32)})
    assert text == b'{"predictions":[[0.1,4.0]]}'


def test_rows_need_a_batch_axis() -> None:
    """A scalar output, or outputs of different lengths, come in column format only."""
    with pytest.raises(InvalidInput, match="column format"):
        outputs_of(model(X), [np.array(1.0)], rows=True)
    two = model(X, outputs=("a", "b"))
    with pytest.raises(InvalidInput, match="column format"):
        outputs_of(two, [np.zeros(2), np.zeros(3)], rows=True)
    assert outputs_of(model(X), [np.array(1.5)], rows=False) == {"outputs": 1.5}


def examples(tensors: ModelTensors, listed: Any, **more: Any) -> dict[str, list[Any]]:
    """Decode a classify or regress request."""
    body = json.dumps({"examples": listed, **more}).encode()
    decoded = decode_examples("m", "classify", only(tensors), body)
    return {name: array.tolist() for name, array in decoded.inputs.items()}


def test_examples_are_features_by_name() -> None:
    """Features common to all examples may stand in the context; booleans are numbers here."""
    tensors = model(X, IDS)
    assert examples(tensors, [{"x": [1.0, 2.0]}, {"x": [3.0, 4.0], "ids": True}], context={"ids": 5}) == {
        "x": [[1, 2], [3, 4]],
        "ids": [5, 1],
    }
    single = TensorInfo("s", "float32", (-1, 1))
    assert examples(model(single), [{"s": 1.0}, {"s": [2.0]}]) == {"s": [[1.0], [2.0]]}


def test_shared_context_is_read_once_and_repeated() -> None:
    """Each example without a value of its own gets the context's value."""
    context = {"words": {"b64": "/w=="}, "x": [5, 6]}
    listed: list[Any] = [{}, {"words": "a"}, {"x": [1, 2]}, {"x": [3, 4], "words": ["b"]}, {}]
    assert examples(model(X, WORDS), listed, context=context) == {
        "x": [[5, 6], [5, 6], [1, 2], [3, 4], [5, 6]],
        "words": [b"\xff", b"a", b"\xff", b"b", b"\xff"],
    }
    # Nobody uses the value that does not fit.
    assert examples(model(X), [{"x": [1, 2]}], context={"x": [1]}) == {"x": [[1, 2]]}


FREE = TensorInfo("x", "float32", (-1, -1))


@pytest.mark.parametrize(
    ("info", "values"),
    [(FREE, [1] * 1023), (WORDS, "a" * 1023), (WORDS, {"b64": "YWFh" * 256})],
    ids=["numbers", "text", "base64"],
)
def test_size_of_a_repeated_context_is_bounded(info: TensorInfo, values: Any) -> None:
    """A small body cannot repeat its context into gigabytes."""
    name = info.name
    assert len(examples(model(info), [{}] * 1000, context={name: values})[name]) == 1000
    with pytest.raises(BodyTooLarge, match="1048576 values or letters"):
        examples(model(info), [{}] * 1025, context={name: values})


def test_names_are_compared_before_values() -> None:
    """A context of a name that the model does not have is not looked at, however long it is."""
    begun_s = time.thread_time()
    with pytest.raises(InvalidInput, match="example 0 must have the features x"):
        examples(model(X), [{}] * 4000, context={"c": [1] * 4000})
    assert time.thread_time() - begun_s < 1


@pytest.mark.parametrize(
    ("listed", "more"),
    [
        ([], {}),
        ({}, {}),
        ([1], {}),
        ([{"x": [1, 2.5]}], {}),
        ([{"x": None}], {}),
        ([{"x": [[1, 2]]}], {}),
        ([{"x": [1, 2], "y": 1}], {}),
        ([{}], {}),
        ([{"x": [1, 2]}], {"context": 1}),
    ],
)
def test_examples_that_do_not_fit_are_refused(listed: Any, more: dict[str, Any]) -> None:
    """Mixed kinds, nested lists, unknown or missing features."""
    with pytest.raises(RequestError):
        examples(model(X), listed, **more)


def results(verb: Verb, method: Method = "predict", examples: int = 1, **outputs: Any) -> Any:
    """The answer to a request of a signature with these outputs."""
    (signature,) = only(model(X, outputs=tuple(outputs)), method)
    arrays = {name: np.asarray(output) for name, output in outputs.items()}
    request = ExamplesRequest(signature, {"inputs": np.zeros(examples)}, examples)
    return json.loads(encode_results(verb, request, arrays))["results"]


def test_results_of_classify_and_regress() -> None:
    """Pairs of label and score, or numbers."""
    scores = np.array([[0.1, 0.9]], np.float32)
    assert results("classify", y=scores) == [[["0", 0.1], ["1", 0.9]]]
    for shape in ((2,), (2, 1)):
        assert results("regress", examples=2, y=np.array([3.5, 4]).reshape(shape)) == [3.5, 4.0]
    with pytest.raises(InvalidInput):
        results("regress", y=scores)
    with pytest.raises(InvalidInput):
        results("classify", y=np.zeros(2))


def test_results_of_signatures_that_are_made_for_it() -> None:
    """Labels are the model's where it gives classes; without scores they are 0."""
    classes = np.array([[b"cat", "é".encode()]], object)
    scores = np.array([[0.25, 0.75]], np.float32)
    assert results("classify", "classify", classes=classes, scores=scores) == [[["cat", 0.25], ["é", 0.75]]]
    assert results("classify", "classify", classes=classes) == [[["cat", 0.0], ["é", 0.0]]]
    assert results("classify", "classify", scores=scores) == [[["0", 0.25], ["1", 0.75]]]
    assert results("regress", "regress", 2, outputs=[[1.5], [2.0]]) == [1.5, 2.0]
    for verb, outputs in (
        ("classify", {"scores": scores[:, :1], "classes": classes}),
        ("classify", {"y": scores}),
        ("regress", {"y": [1.0]}),
        ("regress", {"outputs": classes}),
    ):
        with pytest.raises(InvalidInput):
            results(verb, verb, **outputs)  # type: ignore[arg-type]


EXAMPLES = TensorInfo("inputs", "string", (-1,))


def test_a_signature_is_found_by_its_name() -> None:
    """Without a name the first signature is meant; the error of an unknown one lists the names."""
    signatures = [NamedSignature("embed", model(X)), NamedSignature("ids", model(IDS))]
    for name, body in (("", [[1, 2]]), ("embed", [[1, 2]]), ("ids", [7])):
        request = decode_predict(signatures, json.dumps({"signature_name": name, "instances": body}).encode())
        assert request.signature is signatures[name == "ids"]
        assert list(request.inputs) == [request.signature.tensors.inputs[0].name]
    with pytest.raises(
        InvalidInput, match='"serving_default" not found in signature def; served here: embed, ids'
    ):
        decode_predict(signatures, b'{"signature_name": "serving_default", "instances": [1]}')
    with pytest.raises(MalformedBody, match="string"):
        decode_examples("m", "classify", signatures, b'{"signature_name": 1, "examples": [{}]}')


def test_examples_are_serialized_for_a_signature_that_parses_them() -> None:
    """Each has the features of the context that it has not itself; booleans are numbers."""
    body = {
        "context": {"a": 1, "b": [0.5]},
        "examples": [{}, {"a": ["x", {"b64": "/w=="}], "c": True}, {"e": []}],
    }
    signatures = only(model(EXAMPLES), "classify")
    request = decode_examples("m", "classify", signatures, json.dumps(body).encode())
    context = [entry_of("a", [1]), entry_of("b", [0.5])]
    assert request.inputs["inputs"].tolist() == [
        example_of(context),
        example_of([context[1], entry_of("a", [b"x", b"\xff"]), entry_of("c", [1])]),
        example_of([*context, entry_of("e", [])]),
    ]


@pytest.mark.parametrize(
    ("feature", "complaint"),
    [
        ([1, 2.5], "several types"),
        (None, "numbers or strings"),
        ([[1]], "numbers or strings"),
        ({"b64": "x", "y": 1}, "numbers or strings"),
        ({"b64": "x"}, "base64"),
        (2**63, "does not fit"),
        (1e39, "does not fit"),
    ],
)
def test_features_that_no_example_can_hold_are_refused(feature: Any, complaint: str) -> None:
    """As those of other signatures, and numbers that are too large for an example."""
    for document in ({"examples": [{"a": feature}]}, {"examples": [{}], "context": {"a": feature}}):
        with pytest.raises(InvalidInput, match=complaint):
            decode_examples("m", "regress", only(model(EXAMPLES), "regress"), json.dumps(document).encode())


def test_signature_refuses_the_other_method() -> None:
    """A signature whose input is no vector of examples refuses both."""
    body = b'{"examples": [{"a": 1}]}'
    with pytest.raises(
        InvalidInput, match="cannot regress by its signature serving_default: it is for classify"
    ):
        decode_examples("m", "regress", only(model(EXAMPLES), "classify"), body)
    with pytest.raises(InvalidInput, match="no vector of serialized examples"):
        decode_examples("m", "regress", only(model(X), "regress"), body)


ANY_EXAMPLES = TensorInfo("inputs", "string", (), any_rank=True)


@pytest.mark.parametrize(
    ("verb", "method", "input_info", "outputs", "serialized"),
    [
        ("regress", "regress", ANY_EXAMPLES, ("outputs",), True),
        ("classify", "classify", ANY_EXAMPLES, ("classes", "scores"), True),
        ("classify", "predict", EXAMPLES, ("classes", "scores"), True),
        ("classify", "predict", ANY_EXAMPLES, ("scores",), True),
        ("regress", "predict", EXAMPLES, ("outputs",), True),
        ("regress", "predict", EXAMPLES, ("scores",), False),
        ("classify", "predict", WORDS, ("scores",), False),
    ],
)
def test_signature_with_names_of_examples_takes_them_without_a_method(
    verb: Verb, method: Method, input_info: TensorInfo, outputs: tuple[str, ...], serialized: bool
) -> None:
    """As in TensorFlow Serving: TensorFlow 2 writes no method, and older exports declare no shape."""
    tensors = model(input_info, outputs=outputs)
    body = {"examples": [{input_info.name: "a"}, {input_info.name: ["b"]}]}
    request = decode_examples("m", verb, only(tensors, method), json.dumps(body).encode())
    examples = [example_of([entry_of(input_info.name, [text])]) for text in (b"a", b"b")]
    assert request.inputs[input_info.name].tolist() == (examples if serialized else [b"a", b"b"])


def test_other_number_of_results_than_examples_is_refused() -> None:
    """A model that gives one result for all examples has no answer for each."""
    with pytest.raises(InvalidInput, match="gives 1 results for 2 examples"):
        results("regress", examples=2, y=[3.5])
