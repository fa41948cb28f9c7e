"""Requests that a model is known to answer: where they are found, and how each kind of file becomes inputs."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, WarmUpInput, WarmUpRequest
from stoker.errors import LoadFailed
from stoker.isolation.made_up_rows import sample_feeds
from stoker.samples import sample_files
from stoker.samples.sample import Sample, find_sample_feeds
from stoker.samples.sample_files import describe_sample, read_sample
from stoker.settings.image_input import ImageInput
from stoker.tensors import TensorInfo

X = TensorInfo("x", "float32", (-1, 2))
WORDS = TensorInfo("words", "string", (-1,))
ROWS = [[1.5, 2.0], [3.0, 4.0]]


def deployment(folder: Path, framework: str = "onnx", **settings: Any) -> Deployment:
    path = folder / "model.onnx" if framework == "onnx" else folder
    return Deployment("digits", 1, framework, path, folder, 4, 64, **settings)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


OPEN_INFERENCE = {
    "id": "7",
    "inputs": [
        {"name": "words", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1.5, 2, 3, 4]},
    ],
    "outputs": [{"name": "whatever"}],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("azure.json", {"data": {"x": ROWS, "words": ["a", "b"]}, "method": "predict"}),
        ("columns.json", {"inputs": {"x": ROWS, "words": ["a", {"b64": "Yg=="}]}}),
        ("rows.json", {"instances": [{"x": x, "words": w} for x, w in zip(ROWS, "ab", strict=True)]}),
        ("v2.json", OPEN_INFERENCE),
        ("arrays.npz", npz(x=np.array(ROWS), words=np.array([b"a", b"b"]))),
    ],
)
def test_each_kind_of_file_gives_the_inputs(tmp_path: Path, name: str, content: Any) -> None:
    """Names, values and the model's dtypes are those of the file, and the arrays can be changed."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    feeds = read_sample(path, (X, WORDS))
    assert list(feeds) == ["x", "words"]
    assert feeds["x"].dtype == np.float32
    assert feeds["x"].tolist() == ROWS
    assert feeds["words"].tolist() == [b"a", b"b"]
    assert all(array.flags.writeable for array in feeds.values())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("azure.json", json.dumps({"data": ROWS}).encode()),
        ("rows.json", json.dumps({"instances": ROWS}).encode()),
        ("columns.json", json.dumps({"inputs": ROWS}).encode()),
        ("array.npy", npy(np.array(ROWS))),
        ("called_otherwise.json", npy(np.array(ROWS, np.float32))),
    ],
)
def test_the_only_input_needs_no_name(tmp_path: Path, name: str, content: bytes) -> None:
    """The file's format is recognised by its content."""
    path = tmp_path / name
    path.write_bytes(content)
    assert read_sample(path, (X,))["x"].tolist() == ROWS


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not what the model takes: The request body is empty$"),
        (b"[[1, 2]]", 'expected a JSON object with "data", "instances" or "inputs", got a list of 1$'),
        (b'{"Inputs": [[1, 2]]}', "the JSON has the keys 'Inputs'; expected \"data\""),
        (b'{"data": [[1, 2, 3]]}', r"Expected x float32\[\?,2\], got the shape \[1, 3\]$"),
        (b'{"data": [["a", "b"]]}', r"x: expected numbers as x float32\[\?,2\], got something else$"),
        (b'{"instances": [[1, 2], [3]]}', "Encountered list at unexpected size: 1"),
        (b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}]}', "'FP64'"),
        (b'{"inputs": []}', "expected 1 inputs but got 0 inputs for model ''. Missing: 'x'$"),
        (npy(np.zeros((1, 3))), r"got the shape \[1, 3\]$"),
        (npy(np.zeros((0, 2))), "is empty: it has no values for 'x'$"),
        (npz(y=np.zeros((1, 2))), "it holds the arrays y, and the model has the inputs x$"),
        (b"PK\x03\x04 and no more", "it is no .npz file: File is not a zip file$"),
    ],
)
def test_unreadable_sample_file_is_refused_with_its_reason(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    """One sentence names the file and the reason."""
    path = tmp_path / "sample_input.json"
    path.write_bytes(content)
    with pytest.raises(LoadFailed, match=complaint) as refused:
        read_sample(path, (X,))
    assert str(path) in str(refused.value)


def test_one_array_is_not_enough_for_several_inputs(tmp_path: Path) -> None:
    """The message says which kind of file is."""
    path = tmp_path / "sample.npy"
    path.write_bytes(npy(np.zeros((1, 2))))
    with pytest.raises(LoadFailed, match=r"holds one array, and the model has x, words: save it as .npz$"):
        read_sample(path, (X, WORDS))
    with pytest.raises(LoadFailed, match=r"cannot be read: .*nowhere"):
        read_sample(tmp_path / "nowhere", (X,))


def test_images_are_read_where_the_model_says_how(tmp_path: Path) -> None:
    """They become its rows as those of a request do; without an image input they are refused."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    path = tmp_path / "sample_input.png"
    pillow.fromarray(np.array([[0, 255], [51, 0]], np.uint8)).save(path)
    pixels = TensorInfo("pixels", "float32", (-1, 4))
    image = ImageInput(2, 2, channels=1)
    (row,) = read_sample(path, (pixels,), image=image)["pixels"]
    assert row.tolist() == pytest.approx([0, 1, 0.2, 0])
    with pytest.raises(
        LoadFailed, match=r"it is an image, and the settings of the model have no image input$"
    ):
        read_sample(path, (pixels,))
    numbers = tmp_path / "sample_input.json"
    numbers.write_text('{"data": [[0, 1, 2, 3]]}')
    assert read_sample(numbers, (pixels,), image=image)["pixels"].tolist() == [[0, 1, 2, 3]]


def test_rows_are_counted_only_where_all_inputs_have_as_many() -> None:
    """Inputs of different lengths have no batch axis."""
    assert Sample({"x": np.zeros((3, 2)), "words": np.zeros(3)}, "").rows == 3
    assert Sample({"x": np.zeros((3, 2)), "words": np.zeros(2)}, "").rows is None
    assert Sample({"x": np.zeros(())}, "").rows is None


def test_the_first_place_that_has_a_sample_counts(tmp_path: Path) -> None:
    """The setting's file, then the one beside the model, then what another server is to warm it up with."""
    warm_up = (WarmUpRequest("w", 1, (WarmUpInput("x", "TYPE_FP32", (2,), "zero"),)),)
    model = deployment(tmp_path, warm_up=warm_up)
    assert find_sample_feeds(deployment(tmp_path), (X,)) is None
    found = find_sample_feeds(model, (X,))
    assert found is not None
    assert (found.feeds["x"].tolist(), found.source) == ([[0, 0]], "model_warmup 'w'")
    (tmp_path / "sample_input.npy").write_bytes(npy(np.array([[1, 2]])))
    found = find_sample_feeds(model, (X,))
    assert found is not None
    assert (found.feeds["x"].tolist(), found.source) == ([[1, 2]], "sample_input.npy")
    named = tmp_path / "mine.json"
    named.write_text('{"data": [[3, 4]]}')
    found = find_sample_feeds(deployment(tmp_path, warm_up=warm_up, sample_input=named), (X,))
    assert found is not None
    assert (found.feeds["x"].tolist(), found.source) == ([[3, 4]], "mine.json")


def warm_up(*inputs: WarmUpInput, batch_size: int = 1) -> WarmUpRequest:
    return WarmUpRequest("w", batch_size, inputs)


def test_warm_up_requests_of_triton_are_made_as_triton_makes_them(tmp_path: Path) -> None:
    """Sizes are without the batch axis, rows are repeated, files may be longer, strings have their lengths."""
    (tmp_path / "x").write_bytes(np.array([1, 2, 9], "<f4").tobytes())
    (tmp_path / "words").write_bytes(b"\x02\0\0\0hi")
    by_file = warm_up(
        WarmUpInput("x", "TYPE_FP32", (2,), "file", tmp_path / "x"),
        WarmUpInput("words", "TYPE_STRING", (), "file", tmp_path / "words"),
        batch_size=3,
    )
    chosen = warm_up(
        WarmUpInput("x", "TYPE_FP32", (2,), "random"), WarmUpInput("words", "TYPE_STRING", (), "zero")
    )
    found = find_sample_feeds(deployment(tmp_path, warm_up=(chosen, by_file)), (X, WORDS))
    assert found is not None
    assert found.feeds["x"].tolist() == [[1, 2]] * 3
    assert found.feeds["words"].tolist() == [b"hi"] * 3
    made = find_sample_feeds(deployment(tmp_path, warm_up=(chosen,)), (X, WORDS))
    assert made is not None
    assert made.feeds["words"].tolist() == [b""]
    assert made.feeds["x"].any()
    unbatched = warm_up(WarmUpInput("x", "TYPE_FP32", (5, 2), "zero"))
    whole = find_sample_feeds(deployment(tmp_path, warm_up=(unbatched,)), (X,))
    assert whole is not None
    assert whole.feeds["x"].shape == (5, 2)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (WarmUpInput("y", "TYPE_FP32", (2,), "zero"), "has no input 'x'; add it to config.pbtxt"),
        (WarmUpInput("x", "TYPE_FP64", (2,), "zero"), r"expected x float32\[\?,2\], got TYPE_FP64"),
        (WarmUpInput("x", "TYPE_FP32", (3,), "zero"), r"got TYPE_FP32 of the sizes 1,3$"),
        (WarmUpInput("x", "TYPE_FP32", (2,), "file", Path("nowhere")), "cannot be read: .*nowhere"),
        (WarmUpInput("x", "TYPE_FP32", (2,), "file", Path(os.devnull)), "it is no regular file"),
    ],
)
def test_warm_up_requests_that_do_not_fit_are_refused(
    tmp_path: Path, entry: WarmUpInput, complaint: str
) -> None:
    """The message names the entry and the reason."""
    with pytest.raises(LoadFailed, match=complaint):
        find_sample_feeds(deployment(tmp_path, warm_up=(warm_up(entry),)), (X,))


# Made by TensorFlow Serving's own classes (tensorflow-serving-api 2.21): a predict request of x = [[1, 2]] and
# words = [0xff], with a model_spec and an output_filter; and a classify request.
PREDICT = bytes.fromhex(
    "32520a500a180a016d120208031a0f73657276696e675f64656661756c74121b0a01781216080112081202080112020802220800"
    "00803f0000004012140a05776f726473120b08071204120208014201ff1a0179"
)
CLASSIFY = bytes.fromhex("0a050a030a016d12080a0612040a020a00")


@pytest.mark.tensorflow
def test_warm_up_requests_of_tensorflow_serving(tmp_path: Path) -> None:
    """Predict requests with the signature's inputs are read, their rows together; other records are passed over."""
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    import tensorflow as tf

    extra = tmp_path / "assets.extra"
    extra.mkdir()
    file = extra / "tf_serving_warmup_requests"
    model = deployment(tmp_path, "tensorflow")
    other = PREDICT.replace(b"\x0a\x01x", b"\x0a\x01y")
    second = PREDICT.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x40")

    def write(*records: bytes) -> None:
        with tf.io.TFRecordWriter(str(file)) as writer:
            for record in records:
                writer.write(record)

    write(CLASSIFY, other, PREDICT, second)
    found = find_sample_feeds(model, (X, WORDS))
    assert found is not None
    assert found.source == "tf_serving_warmup_requests"
    assert found.feeds["x"].tolist() == [[1, 2], [4, 2]]
    assert found.feeds["words"].tolist() == [b"\xff", b"\xff"]
    write(CLASSIFY)
    assert find_sample_feeds(model, (X, WORDS)) is None
    write(PREDICT)
    with pytest.raises(LoadFailed, match=r"expected x float32\[\?,3\], got float32\[1,2\]$"):
        find_sample_feeds(model, (TensorInfo("x", "float32", (-1, 3)), WORDS))
    write(PREDICT[:-1])
    with pytest.raises(LoadFailed, match="cannot be read: a record is no protobuf message"):
        find_sample_feeds(model, (X, WORDS))
    write(PREDICT)
    damaged = bytearray(file.read_bytes())
    damaged[20] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(LoadFailed, match=r"warm-up requests .* cannot be read: "):
        find_sample_feeds(model, (X, WORDS))


@pytest.mark.parametrize("data", ["zero", "random"])
@pytest.mark.parametrize("data_type", ["TYPE_FP32", "TYPE_STRING"])
def test_warm_up_requests_that_no_memory_holds_are_not_made(
    tmp_path: Path, data_type: str, data: Any
) -> None:
    """A line of a configuration names sizes that nobody has."""
    free = TensorInfo("x", "string" if data_type == "TYPE_STRING" else "float32", (-1, -1))
    vast = warm_up(WarmUpInput("x", data_type, (1 << 45,), data))
    with pytest.raises(MemoryError, match=r"a warm-up input of 1 × 35184372088832 numbers would take"):
        find_sample_feeds(deployment(tmp_path, warm_up=(vast,)), (free,))
    with pytest.raises(MemoryError, match="trying 3 rows of x"):
        sample_feeds((TensorInfo("x", "float32", (-1, 1 << 45)),), 1)


def bomb(size_bytes: int) -> bytes:
    """An archive of arrays that inflates to this many bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(npy(np.zeros((size_bytes // 8, 2), np.float32)))
    return file.getvalue()


@pytest.mark.parametrize(
    "read", [lambda path: read_sample(path, [X]), lambda path: describe_sample(path, ["x"])]
)
def test_archive_that_inflates_beyond_the_limit_is_refused(
    tmp_path: Path, read: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than the limit is inflated, whatever the archive announces."""
    monkeypatch.setattr(sample_files, "MOST_SAMPLE_BYTES", 1 << 16)
    (tmp_path / "sample.npz").write_bytes(bomb(1 << 15))
    assert read(tmp_path / "sample.npz")
    (tmp_path / "sample.npz").write_bytes(bomb(1 << 20))
    with pytest.raises(LoadFailed, match="its arrays have more than 0 MiB"):
        read(tmp_path / "sample.npz")


def test_array_that_announces_more_numbers_than_it_has_is_refused(tmp_path: Path) -> None:
    """No memory is reserved for numbers that are not there."""
    announced = b"(2, 999999999999), }"
    content = npy(np.zeros((2, 2), np.float32)).replace(b"(2, 2), }".ljust(len(announced)), announced)
    (tmp_path / "sample.npy").write_bytes(content)
    with pytest.raises(LoadFailed, match="cut short"):
        describe_sample(tmp_path / "sample.npy", ["x"])


def test_archive_that_announces_more_than_the_limit_is_not_inflated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory says enough: none of its files is opened."""
    (tmp_path / "sample.npz").write_bytes(bomb(1 << 20))
    monkeypatch.setattr(sample_files, "MOST_SAMPLE_BYTES", 1 << 16)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("a file of it was opened"))
    with pytest.raises(LoadFailed, match="its arrays have more than"):
        read_sample(tmp_path / "sample.npz", [X])
