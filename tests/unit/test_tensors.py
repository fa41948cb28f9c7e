"""Tensor specifications and signatures."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import BODIES, ROWS, STEADY, TEXTS

from stoker.row_isolation import RowIsolation
from stoker.script_form import ScriptForm
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorSpec, check_batch

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
specs = st.builds(TensorSpec, st.text(max_size=5), st.sampled_from(sorted(NUMERIC_DTYPES)), shapes)


@STEADY
@given(
    st.builds(
        Signature,
        st.lists(specs, max_size=3).map(tuple),
        st.lists(specs, max_size=3).map(tuple),
        st.sampled_from(["rows", "body"]),
    )
)
def test_a_signature_survives_json(signature: Signature) -> None:
    """A signature survives the control channel."""
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_variable_specifications_survive_json() -> None:
    """A body signature and one with JSON rows come back as they were."""
    for signature in (BODIES, TEXTS):
        assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_the_isolation_of_a_signature_is_read_under_its_earlier_name() -> None:
    """Signatures that were registered before have it as `verdict`."""
    signature = dataclasses.replace(ROWS, isolation=RowIsolation(True, "tested", "with companions", 9))
    stored = signature.to_json()
    stored["verdict"] = stored.pop("isolation")
    assert Signature.from_json(stored).isolation == signature.isolation


def test_decoded_rows_fit_a_signature_with_other_room_for_answers() -> None:
    """Rows fit the same model with more room for answers, but no model with other tensors."""
    packed = dataclasses.replace(BODIES, takes="tensors")
    assert packed.with_answers(1 << 30).reads_as(packed)
    assert packed.reads_as(packed.with_answers(1 << 30))
    assert TEXTS.reads_as(TEXTS)
    for other in (ROWS, BODIES, packed, dataclasses.replace(TEXTS, inputs=BODIES.inputs)):
        assert not TEXTS.reads_as(other)
        assert not other.reads_as(TEXTS)


@STEADY
@given(specs)
def test_row_sizes_are_numpys(spec: TensorSpec) -> None:
    """Elements and bytes of a row are what numpy has for such an array."""
    row = np.zeros(spec.shape, spec.dtype)
    assert (spec.elements, spec.row_bytes, spec.numpy_dtype) == (row.size, row.nbytes, row.dtype)


def test_row_bytes_of_a_signature_count_both_sides() -> None:
    """A row takes memory for its inputs and its outputs."""
    signature = Signature(
        (TensorSpec("x", "float32", (3,)), TensorSpec("n", "int64", ())),
        (TensorSpec("y", "float16", (2, 2)),),
    )
    assert signature.row_bytes == 12 + 8 + 8


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("x", "str", (3,)), "dtype 'str' is not one of the numeric dtypes"),
        (("x", "complex64", (3,)), "dtype 'complex64'"),
        (("x", "float32", (3, -1)), "negative size"),
        (("x", "float32", (3,), True), "a variable row is a vector of uint8"),
        (("x", "uint8", (3, 4), True), "a variable row is a vector of uint8"),
    ],
)
def test_a_specification_that_cannot_be_stored_is_refused(
    arguments: tuple[str, str, tuple[int, ...]], complaint: str
) -> None:
    """A dtype, shape or variable row that no arena can hold is refused with its reason."""
    with pytest.raises(ValueError, match=complaint):
        TensorSpec(*arguments)


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        ("float32", (784,), "784 numbers"),
        ("float64", (28, 28), "28 × 28 numbers"),
        ("int64", (3,), "3 integers"),
        ("uint8", (3,), "3 non-negative integers"),
        ("bool", (2,), "2 booleans"),
        ("float32", (), "one number"),
        ("int32", (), "one integer"),
        ("bool", (), "one boolean"),
    ],
)
def test_a_row_is_described_in_words(dtype: str, shape: tuple[int, ...], words: str) -> None:
    """Error messages name the row's shape and kind as a person would."""
    assert TensorSpec("x", dtype, shape).describe_row() == words


def test_a_signature_reads_as_one_line() -> None:
    """The start-up log shows names, dtypes and shapes, with n for the batch axis."""
    signature = Signature(
        (TensorSpec("x", "float32", (28, 28)), TensorSpec("k", "int64", ())),
        (TensorSpec("y", "float32", (10,)),),
    )
    assert str(signature) == "x float32[n,28,28], k int64[n] -> y float32[n,10]"
    assert str(TEXTS) == "x float32[n,2] -> result JSON"
    assert str(BODIES) == "run(raw_data): the request body as text"
    raw = dataclasses.replace(BODIES, script=ScriptForm(kind="raw"))
    assert str(raw) == "run(request): the whole request"
    schema = dataclasses.replace(BODIES, script=ScriptForm(kind="schema"))
    assert str(schema) == "run(...): the parts of the request body that its decorators name"


def test_a_batch_of_the_right_shape_and_dtype_is_not_copied() -> None:
    """Checking a batch that fits costs nothing."""
    batch = np.zeros((4, 3), np.float32)
    assert check_batch(TensorSpec("y", "float32", (3,)), batch, 4) is batch


def test_a_batch_is_cast_within_its_kind() -> None:
    """A model that computes in float64 may serve float32."""
    batch = check_batch(TensorSpec("y", "float32", (2,)), np.array([[0.1, 2]]), 1)
    assert batch.dtype == np.float32
    assert batch.tolist() == [[np.float32(0.1), 2.0]]


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (4, 2), (4,), (4, 3, 1), ()])
def test_a_batch_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """Neither the number of rows nor the shape of a row may differ."""
    with pytest.raises(ValueError, match=r"output 'y' has shape .* for a batch of 4, expected \[4, 3\]"):
        check_batch(TensorSpec("y", "float32", (3,)), np.zeros(shape, np.float32), 4)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "object", "U1"])
def test_a_batch_of_another_kind_is_refused(dtype: str) -> None:
    """A cast that would lose information (floats to integers, text to numbers) is refused."""
    with pytest.raises(TypeError, match="cast"):
        check_batch(TensorSpec("y", "int64", (1,)), np.zeros((1, 1), dtype), 1)
