"""Files of PyTorch without PyTorch: kinds, code in them, inputs by samples, and settings."""

import collections
import io
import json
import os
import pickle
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device, kind_of_torch_file
from stoker.errors import InvalidSettings, LoadFailed
from stoker.models.frameworks import detect
from stoker.runtimes.torch.files import find_code, load_program, load_weights
from stoker.runtimes.torch.loading import load_torch
from stoker.samples.sample_files import describe_sample
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
def test_content_of_the_archive_decides_the_kind(tmp_path: Path, names: tuple[str, ...], kind: str) -> None:
    """The ending does not: TorchScript and weights are both `.pt`."""
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
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    deployment = Deployment("net", 1, "torch", tmp_path / "m.pt2", tmp_path, 8, 1000)
    with pytest.raises(
        LoadFailed, match=r"is a model of PyTorch, which is not installed; install it with: .*torch"
    ):
        load_torch(deployment, Device("cpu", 0, "the CPU"), 1)


def test_sample_has_names_and_types(tmp_path: Path) -> None:
    """It is an archive of arrays, an array, JSON of the Open Inference Protocol, or rows of one input."""
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
def test_sample_without_names_or_types_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    """The message has a remedy."""
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(LoadFailed, match=reason):
        describe_sample(tmp_path / "a.json", ["x"])


def test_settings_without_effect_on_pytorch_are_refused() -> None:
    """They are not ignored."""
    check_acceleration("net", "torch", Acceleration(precision="fp32", memory_mb=100))
    for acceleration in (
        Acceleration(provider="tensorrt"),
        Acceleration(xla=True),
        Acceleration(execution="bound"),
    ):
        with pytest.raises(InvalidSettings, match="net: "):
            check_acceleration("net", "torch", acceleration)


class Call:
    """Its pickle calls a function."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


CALLS = {
    **{f"protocol {number}": pickle.dumps(Call(), number) for number in range(6)},
    "after an integer that pickletools does not read": b"I0x10\n0cposix\nsystem\n(S'touch ran'\ntR.",
    "after another pickle": pickle.dumps(1, 2) + pickle.dumps(Call(), 2),
    "cut short": pickle.dumps(Call(), 2)[:-1],
    "made by INST": b"(S'touch ran'\niposix\nsystem\n.",
    "in a dict": pickle.dumps(collections.OrderedDict(x=Call()), 2),
}


def packed(content: bytes, name: str = "archive/data.pkl") -> bytes:
    """Return an archive with one part, as `torch.save` writes it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize("content", CALLS.values(), ids=CALLS)
def test_code_of_a_pickle_is_found(tmp_path: Path, content: bytes) -> None:
    """It is in a file, in an archive, or in an archive within an archive, as parts of programs are."""
    path = tmp_path / "net.pt2"
    for file in (
        content,
        packed(content),
        packed(content, "net/data/constants/opaque_obj_0"),
        packed(packed(content), "net/data/sample_inputs/model.pt"),
    ):
        path.write_bytes(file)
        assert "posix.system" in find_code(path)


def test_code_is_found_in_the_second_of_two_parts_of_one_name(tmp_path: Path) -> None:
    """Readers may take either part."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", CALLS["protocol 2"])
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("net/data.pkl", pickle.dumps({}, 2))
    assert "posix.system" in find_code(path)


def test_archives_that_readers_may_see_differently_are_refused(tmp_path: Path) -> None:
    """They have a comment, which may hold another table of contents, or more levels than PyTorch makes."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps({}, 2))
        archive.comment = b"PK"
    assert find_code(path) == "net.pt2 has a comment"
    content = b""
    for _ in range(4):
        content = packed(content)
    path.write_bytes(content)
    assert find_code(path).endswith("is an archive within archives")


def test_tensors_and_raw_weights_are_no_code(tmp_path: Path) -> None:
    """Pickles of tensors need names, and bytes may look like the begin of a pickle."""
    path = tmp_path / "net.pt2"
    tensor = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nctorch\nFloatStorage\nccollections\nOrderedDict\n."
    random = np.random.default_rng(3)
    for content in (
        tensor,
        *(first + random.bytes(400) for first in (b"c", b"i", b"\x93", b"X", b"\x8c") * 40),
    ):
        path.write_bytes(packed(content, "net/data/weights/weight_0"))
        assert find_code(path) == ""


CODE = "__import__('os').system('touch ran')"
PROGRAMS: list[dict[str, Any]] = [
    {"sizes": [{"as_expr": {"expr_str": CODE, "hint": None}}]},
    {"expr_str": "Symbol('s0', positive=(lambda: 1)())"},
    {"expr_str": "eval(Symbol('s0'))"},
    {"expr_str": "Add(1,\n2)"},
    {"expr_str": "Symbol('s0').func"},
    {"guards_code": ["L['x'].size()[0] > 1", CODE]},
    {"inputs": [{"as_tensor": {"name": f"x={CODE}"}}]},
    {"forward_arg_names": [f"x={CODE}"]},
    {"as_graph": {"name": 'a", exit())'}},
    {
        "in_spec": json.dumps(
            [1, {"type": "x", "context": {"default_factory_module": "evil"}, "children_spec": []}]
        )
    },
    {"out_spec": json.dumps([1, {"type": "x", "context": '{"__enum__": true, "fqn": "evil:X"}'}])},
    {"in_spec": json.dumps([1, {"type": "builtins.dict", "context": json.dumps(["a'], exit(), ['"])}])},
    {"in_spec": "no JSON"},
]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_code_in_the_expressions_of_a_program_is_found(tmp_path: Path, program: dict[str, Any]) -> None:
    """PyTorch evaluates sizes and guards, imports what structures name, and writes names into source."""
    path = tmp_path / "net.pt2"
    path.write_bytes(packed(json.dumps({"graph": [program]}).encode(), "net/models/model.json"))
    assert find_code(path).startswith("net/models/model.json has ")


def test_arithmetic_of_sizes_is_no_code(tmp_path: Path) -> None:
    """`torch.export.save` writes such expressions."""
    structure = [
        1,
        {"type": "builtins.dict", "context": '["pixel values"]', "children_spec": [{"type": None}]},
    ]
    program = {
        "sizes": [
            {"expr_str": "Max(Integer(1), FloorDiv(Add(Symbol('s27', integer=True), Integer(-3)), 2))"},
            {
                "expr_str": "FloatPow(ToFloat(Symbol('s6', positive=True, integer=True)), Float('0.5', precision=53))"
            },
        ],
        "guards_code": [
            "(L['x'].size()[1] // 2) == L['opts']['k'][0].size()[1]",
            "L['x'].size()[1] != torch.sym_max(1, L['x'].size()[1] // 2)",
        ],
        "in_spec": json.dumps(structure),
        "out_spec": json.dumps(
            [1, {"type": "collections.namedtuple", "context": "net.Pair", "children_spec": []}]
        ),
        "forward_arg_names": ["x", "opts"],
        "input_specs": [{"parameter": {"arg": {"name": "p_a_b"}, "parameter_name": "layers.a-b c.weight"}}],
        "metadata": {"stack_trace": "File \"net.py\", line 1\n  eval('x')"},
    }
    path = tmp_path / "net.pt2"
    path.write_bytes(packed(json.dumps(program).encode(), "net/models/model.json"))
    assert find_code(path) == ""


def test_a_version_of_pytorch_that_runs_code_of_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read; a later one is told in `PyTorch cannot load` what it does not load."""
    for version in ("2.9.1+cpu", "1.13"):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
        for load in (load_program, lambda path: load_weights(path, "cpu")):
            with pytest.raises(LoadFailed, match=r"CVE-2026-24747\): install 2.10 or newer"):
                load(tmp_path / "net.pt2")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.10.0a0"))
    (tmp_path / "net.pt2").write_bytes(packed(CALLS["protocol 2"]))
    with pytest.raises(LoadFailed, match=r"holds pickled objects, which run code .* names posix\.system\)"):
        load_program(tmp_path / "net.pt2")
