"""Tensors as TensorFlow writes them, errors in others, and the messages around them."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody, RequestError, StokerError
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.grpc.tensorflow_serving import (
    ExamplesMessage,
    ModelSpec,
    PredictMessage,
    TensorBytes,
    _encode_prediction,
    read_tensor,
    tensor_bytes,
)
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, TensorInfo
from stoker.wire.protobuf import field
from stoker.wire.tfs import complete_axes
from stoker.wire.tfs_examples import entry_of, example_of

Proto = message("TensorProto", SERVING)
BY_TENSORFLOW = {
    "bool": ("080a120812020802120208025a0400010101", "080a120812020802120208025a0400010101"),
    "uint8": ("080412081202080212020802220400010103", "0804120812020802120208023a0400010103"),
    "uint16": ("0811120812020802120208023a0400010103", "0811120812020802120208023a0400010103"),
    "uint32": (
        "081612081202080212020802221000000000010000000100000003000000",
        "08161208120208021202080282010400010103",
    ),
    "uint64": (
        "08171208120208021202080222200000000000000000010000000000000001000000000000000300000000000000",
        "0817120812020802120208028a010400010103",
    ),
    "int8": ("080612081202080212020802220400010103", "0806120812020802120208023a0400010103"),
    "int16": ("08051208120208021202080222080000010001000300", "0805120812020802120208023a0400010103"),
    "int32": (
        "080312081202080212020802221000000000010000000100000003000000",
        "0803120812020802120208023a0400010103",
    ),
    "int64": (
        "08091208120208021202080222200000000000000000010000000000000001000000000000000300000000000000",
        "080912081202080212020802520400010103",
    ),
    "float16": (
        "08131208120208021202080222080000003c003c0042",
        "0813120812020802120208026a080080788078808401",
    ),
    "float32": (
        "0801120812020802120208022210000000000000803f0000803f00004040",
        "0801120812020802120208022a10000000000000803f0000803f00004040",
    ),
    "float64": (
        "08021208120208021202080222200000000000000000000000000000f03f000000000000f03f0000000000000840",
        "08021208120208021202080232200000000000000000000000000000f03f000000000000f03f0000000000000840",
    ),
}
"""[[0, 1], [1, 3]] by dtype, of booleans [[0, 1], [1, 1]]: by `tf.make_tensor_proto` of TensorFlow 2.21, and with an
element each."""
MATRIX = TensorInfo("x", "float32", (-1, 2))


def read(info: TensorInfo, content: bytes) -> np.ndarray:
    """Read a tensor that has a message for itself."""
    return read_tensor("m", info, TensorBytes(content, 0, len(content)))


def proto(*shape: int, dtype: int = 1, **fields: object) -> bytes:
    """A tensor, of floats by default."""
    dims = [{"size": size} for size in shape]
    content: bytes = Proto(dtype=dtype, tensor_shape={"dim": dims}, **fields).SerializeToString()
    return content


@pytest.mark.parametrize("dtype", BY_TENSORFLOW)
def test_tensors_of_tensorflow(dtype: str) -> None:
    """Both forms are read; answers have the form with elements, byte by byte as TensorFlow's library writes it."""
    expected = np.array([[0, 1], [1, 3]], dtype)
    for written in BY_TENSORFLOW[dtype]:
        array = read(TensorInfo("x", dtype, (-1, 2)), bytes.fromhex(written))
        assert array.dtype == dtype
        assert array.tolist() == expected.tolist()
    assert tensor_bytes(expected).hex() == BY_TENSORFLOW[dtype][1]


def test_strings() -> None:
    """Each element may hold any bytes."""
    written = bytes.fromhex("08071208120208021202080142016142026263")
    array = read(TensorInfo("x", "string", (-1, 1)), written)
    assert array.tolist() == [[b"a"], [b"bc"]]
    assert tensor_bytes(array) == written


@pytest.mark.parametrize(
    ("shape", "content", "strings"),
    [
        ((2,), b"\1\2abc", [b"a", b"bc"]),
        ((2, 1), b"\0\1\xff", [[b""], [b"\xff"]]),
        ((1,), b"\x80\x01" + b"x" * 128, [b"x" * 128]),
        ((2,), b"\1a", None),
        ((1,), b"\2a", None),
        ((1,), b"\1ab", None),
        ((1,), b"\xff" * 12, None),
    ],
)
def test_strings_of_tensor_content_are_lengths_and_bytes(
    shape: tuple[int, ...], content: bytes, strings: list[object] | None
) -> None:
    """As TensorFlow encodes them; other contents are refused."""
    info = TensorInfo("x", "string", (-1,) * len(shape))
    tensor = proto(*shape, dtype=7, tensor_content=content)
    if strings is not None:
        assert read(info, tensor).tolist() == strings
        return
    with pytest.raises(MalformedBody, match="does not hold"):
        read(info, tensor)


def test_axes_of_size_1_may_be_left_out() -> None:
    """Where the declared shape is `[?,1]`, as over HTTP; the answer to it has the axes that were sent."""
    column = TensorInfo("x", "float32", (-1, 1))
    given = {"x": read(column, proto(2, float_val=[1, 2]))}
    whole, sent_axes = complete_axes(given, ModelTensors((column,), (column,), batched=True))
    assert (whole["x"].shape, sent_axes) == ((2, 1), 1)
    _, answer = _encode_prediction((column,), sent_axes, b"", whole)
    assert tensor_bytes(given["x"]) in answer


@given(st.sampled_from(sorted(NUMERIC_DTYPES)), st.lists(st.integers(0, 4), max_size=3))
def test_array_of_any_dtype_and_shape_survives_the_round_trip(dtype: str, shape: list[int]) -> None:
    """Arrays of every dtype and shape, scalars and empty ones too, are read as they were written."""
    info = TensorInfo("x", dtype, (-1,) * len(shape))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    again = read(info, tensor_bytes(array))
    assert again.dtype == dtype
    assert again.tolist() == array.tolist()


def test_elements_that_are_left_out_repeat_the_last() -> None:
    """As TensorFlow has it; none at all are zeros."""
    assert read(MATRIX, proto(2, 2, float_val=[1, 2])).tolist() == [[1, 2], [2, 2]]
    assert read(MATRIX, proto(2, 2)).tolist() == [[0, 0], [0, 0]]
    assert read(TensorInfo("x", "string", (-1,)), proto(2, dtype=7, string_val=[b"a"])).tolist() == [
        b"a",
        b"a",
    ]
    assert read(TensorInfo("x", "string", (-1,)), proto(1, dtype=7)).tolist() == [b""]


def test_floats_one_by_one() -> None:
    """A field for each element, few of them or many, is read as well as one field with all of them."""
    for count in (4, 400):
        head = proto(count // 2, 2)
        elements = b"".join(b"\x2d" + np.float32(number).tobytes() for number in range(count))
        assert read(MATRIX, head + elements).reshape(-1).tolist() == list(range(count))


@pytest.mark.parametrize(
    ("content", "error", "part"),
    [
        (b"\xff", MalformedBody, "cannot be read"),
        (b"\x12\x04\x0a", MalformedBody, "cannot be read"),
        (b"\x12\x01\x0a", MalformedBody, "cannot be read"),
        (proto(1, 2, dtype=2), InvalidInput, "is DT_DOUBLE, but model 'm' expects DT_FLOAT"),
        (proto(1, 2, dtype=15), InvalidInput, "is type 15"),
        (proto(1, 3, float_val=[1, 2, 3]), InvalidInput, "unexpected shape"),
        (proto(-1, 2), MalformedBody, "negative"),
        (proto(1 << 40, 2), MalformedBody, "too many"),
        (proto(1 << 30, 2, float_val=[1]), BodyTooLarge, "fewer elements"),
        (proto(*[1] * 40), MalformedBody, "axes"),
        (proto(1, 2, float_val=[1, 2, 3]), MalformedBody, "3 elements"),
        (proto(1, 2, tensor_content=b"1234567"), MalformedBody, "7 bytes"),
        (proto(1, 2) + b"\x2a\x05abcde", MalformedBody, "end within one"),
        (proto(1, 2) + b"\x38\x01" * (5 << 20), BodyTooLarge, "tensor_content"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(content: bytes, error: type[StokerError], part: str) -> None:
    """In a sentence that names the input, and before much is done for them."""
    with pytest.raises(error, match=part):
        read(MATRIX, content)


def test_numbers_that_do_not_fit() -> None:
    """They are refused, not cut."""
    with pytest.raises(InvalidInput, match="fit"):
        read(TensorInfo("x", "int8", (-1,)), proto(1, dtype=6, int_val=[300]))
    with pytest.raises(InvalidInput, match="fit"):
        read(TensorInfo("x", "float16", (-1,)), proto(1, dtype=19, half_val=[1 << 16]))


def test_predict_messages_of_tensorflow_serving() -> None:
    """As `tensorflow-serving-api` 2.21 writes them: with a version by number, and by label."""
    read_message = PredictMessage.read(
        bytes.fromhex(
            "0a0a0a016d120208031a017312230a0178121e080112081202080212020802"
            "22100000803f0000004000004040000080401a0179"
        )
    )
    assert (read_message.spec, read_message.wanted) == (ModelSpec("m", "3", "", "s"), ("y",))
    assert read_tensor("m", MATRIX, read_message.inputs["x"]).tolist() == [[1, 2], [3, 4]]
    assert PredictMessage.read(bytes.fromhex("0a0b0a016d2206737461626c65")).spec.label == "stable"
    # A wrapper without a value is the number 0.
    assert PredictMessage.read(bytes.fromhex("0a050a016d1200")).spec.model_version == "0"


def test_example_messages_of_tensorflow_serving() -> None:
    """Two examples with a context, as `tensorflow-serving-api` 2.21 writes them."""
    read_message = ExamplesMessage.read(
        bytes.fromhex(
            "0a030a016d123b12390a110a0f0a0d0a0161120812060a040000803f"
            "0a110a0f0a0d0a0161120812060a040000004012110a0f0a0d0a0162120812060a0400008040"
        )
    )
    assert read_message.spec.model_name == "m"
    assert read_message.examples == [example_of([entry_of("a", [1.0])]), example_of([entry_of("a", [2.0])])]
    assert read_message.context == example_of([entry_of("b", [4.0])])


NAMED = field(1, field(1, b"m"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x0a",
        b"\x0b",
        field(1, b"\x0a\x05m"),
        field(1, b"a" * (1 << 17)),
        NAMED + field(2, field(1, b"\xff")),
        NAMED + field(3, b"\xff"),
        NAMED + field(4, b"") * 20_000,
        NAMED + field(2, field(1, b"x") * 20),
    ],
)
def test_predict_messages_that_are_refused(content: bytes) -> None:
    """Not as a fault of the server."""
    with pytest.raises((MalformedBody, BodyTooLarge)):
        PredictMessage.read(content)


def test_a_model_spec_in_many_parts_is_given_up_at_once() -> None:
    """Each part is looked at once, after any number of parts before it."""
    content = field(1, b"a" * 6_000) * 2_000
    begun_s = time.thread_time()
    with pytest.raises(BodyTooLarge):
        PredictMessage.read(content)
    assert time.thread_time() - begun_s < 1


@pytest.mark.parametrize(
    "content",
    [
        NAMED,
        NAMED + field(2, b""),
        NAMED + field(2, field(3, b"")),
        NAMED + field(2, field(1, b"")),
        NAMED + field(2, field(2, field(2, b""))),
        NAMED + field(2, field(1, b"") * 2),
        NAMED + field(2, field(1, field(1, b"") * 70_000)),
        field(2, field(1, field(1, b""))),
    ],
)
def test_example_messages_that_are_refused(content: bytes) -> None:
    """Without an input, with two, without examples, and with more than are read at once."""
    with pytest.raises((MalformedBody, BodyTooLarge)):
        ExamplesMessage.read(content)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """And never a fault of the server."""
    for attempt in (PredictMessage.read, ExamplesMessage.read, lambda part: read(MATRIX, part)):
        with contextlib.suppress(RequestError):
            attempt(content)
