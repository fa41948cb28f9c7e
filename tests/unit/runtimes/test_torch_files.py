"""Files of PyTorch without PyTorch: what they are, what samples say of their inputs, and their settings."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stoker.deployment import Deployment, Device, kind_of_torch_file
from stoker.errors import InvalidSettings, LoadFailed
from stoker.isolation.sample_files import describe_sample
from stoker.models.frameworks import detect
from stoker.settings.choices import Acceleration, check_acceleration


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, b"")
    return path


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("m/models/model.json", "m/data/weights/weight_0"), "program"),
        (("serialized_exported_program.json", "serialized_state_dict.pt"), "program"),
        (("a/data/aotinductor/model/x.wrapper.so", "a/archive_format"), "aotinductor"),
        (("m/data.pkl", "m/code/__torch__/net.py", "m/constants.pkl"), "torchscript"),
        (("m/data.pkl", "m/data/0"), "weights"),
        (("readme.txt",), ""),
    ],
)
def test_a_file_is_known_by_what_is_in_its_archive(tmp_path: Path, names: tuple[str, ...], kind: str) -> None:
    """Its ending does not say: TorchScript and weights are both `.pt`."""
    assert kind_of_torch_file(archive(tmp_path / "model.pt", *names)) == kind


def test_file_that_is_no_archive_has_no_torch_kind(tmp_path: Path) -> None:
    """Pickles of before PyTorch 1.6 and half files are no files of PyTorch."""
    path = tmp_path / "model.pt"
    path.write_bytes(b"\x80\x02}q\x00.")
    assert kind_of_torch_file(path) == ""
    assert kind_of_torch_file(tmp_path / "missing.pt") == ""


def test_a_folder_has_one_model_of_pytorch(tmp_path: Path) -> None:
    """The usual name wins; beside another model the files belong to that."""
    (tmp_path / "weights.pt").touch()
    assert detect(tmp_path).path.name == "weights.pt"
    (tmp_path / "model.pt2").touch()
    found = detect(tmp_path)
    assert (found.framework, found.path.name) == ("torch", "model.pt2")
    (tmp_path / "model.onnx").touch()
    assert detect(tmp_path).framework == "onnx"


def test_without_pytorch_the_load_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    from stoker.runtimes import torch as runtime

    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    deployment = Deployment("net", 1, "torch", tmp_path / "m.pt2", tmp_path, 8, 1000)
    with pytest.raises(
        LoadFailed, match=r"is a model of PyTorch, which is not installed; install it with: .*torch"
    ):
        runtime.load_torch(deployment, Device("cpu", 0, "the CPU"), 1)


def test_a_sample_says_names_and_types(tmp_path: Path) -> None:
    """An archive of arrays, an array, JSON of the Open Inference Protocol, or rows of one input."""
    array = np.ones((2, 3), np.float32)
    np.savez(tmp_path / "a.npz", x=array, y=array.astype(np.int64))
    found = describe_sample(tmp_path / "a.npz", ["y", "x"])
    assert {name: value.dtype.name for name, value in found.items()} == {"y": "int64", "x": "float32"}
    np.save(tmp_path / "a.npy", array)
    assert describe_sample(tmp_path / "a.npy", ["x"])["x"].shape == (2, 3)
    body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP16", "data": [1, 2]}]}
    (tmp_path / "a.json").write_text(json.dumps(body))
    assert describe_sample(tmp_path / "a.json", ["x"])["x"].dtype == np.float16
    for rows, dtype in (([[1.5, 2]], "float32"), ([[1, 2]], "int64")):
        (tmp_path / "b.json").write_text(json.dumps({"data": rows}))
        assert describe_sample(tmp_path / "b.json", ["x"])["x"].dtype.name == dtype


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"data": [["text"]]}', "its rows are no numbers of one shape"),
        ('{"data": [[1], [2, 3]]}', "does not say what the model takes"),
        ("[1, 2]", "expected a JSON object"),
        ('{"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1]}]}', "does not say what"),
        (
            '{"inputs": [{"name": "z", "shape": [1], "datatype": "FP32", "data": [1]}]}',
            "has z, and the model takes x",
        ),
        ("PK\x03\x04", "does not say what the model takes"),
    ],
)
def test_a_sample_that_says_nothing_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    """With what to do instead."""
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(LoadFailed, match=reason):
        describe_sample(tmp_path / "a.json", ["x"])


def test_settings_that_pytorch_has_not_are_refused() -> None:
    """Rather than passed over."""
    check_acceleration("net", "torch", Acceleration(precision="fp32", memory_mb=100))
    for acceleration in (
        Acceleration(provider="tensorrt"),
        Acceleration(xla=True),
        Acceleration(execution="bound"),
    ):
        with pytest.raises(InvalidSettings, match="net: "):
            check_acceleration("net", "torch", acceleration)
