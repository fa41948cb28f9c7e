"""`stoker models`."""

import argparse
import dataclasses
import io
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.text_models import write_text_model

from stoker.commands import model_events
from stoker.commands import models as command
from stoker.commands.running_server import server_here
from stoker.deployment import Deployment, Device
from stoker.device import signature_probe
from stoker.device.loading import load
from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, ModelInUse, OperatorError, RepositoryError
from stoker.keys.keyring import AdminKey
from stoker.models.labels import stored_canary, stored_labels
from stoker.models.layouts import discover
from stoker.models.repository import Repository
from stoker.settings.traffic import Canary
from stoker.settings.workspace import Workspace
from stoker.tensors import Signature, TensorSpec


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "workspace"
    monkeypatch.setenv("STOKER_WORKSPACE", str(folder))
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "score.py").write_text("def init(): ...\ndef run(raw_data): ...\n")
    (folder / "weights.bin").write_bytes(bytes(2_500_000))
    return folder


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """A model that doubles rows of three numbers."""
    onnx = pytest.importorskip("onnx", reason="onnx, of the training extra, is not installed")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["doubled"])],
        "double",
        [helper.make_tensor_value_info("x", number, ["n", 3])],
        [helper.make_tensor_value_info("doubled", number, ["n", 3])],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "double.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_description_of_a_model_is_printed_without_control_characters(
    workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Descriptions and tags can neither move the terminal nor look like a line of the table."""
    content = "good\nfake:9  onnx\x1b]0;title\x07\x9b2J\u202e"
    run("register", "digits", script, "--description", content, "--tag", f"team={content}")
    for arguments in (["list"], ["show", "digits"]):
        assert run(*arguments) == 0
        shown = capsys.readouterr().out
        assert not any(line.startswith("fake") for line in shown.splitlines())
        assert set(shown) - {"\n"} == {letter for letter in shown if letter.isprintable()}
    assert r"\x1b]0;title\x07\x9b2J\u202e" in shown


def test_register_prints_the_reference(
    workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is NAME:VERSION, and the workspace is created with its marks of privacy."""
    assert run("register", "digits", script) == 0
    assert run("register", "digits", script) == 0
    captured = capsys.readouterr()
    assert captured.out == "digits:1\ndigits:2\n"
    assert captured.err == ""
    assert (workspace / ".gitignore").exists()


def test_register_keeps_description_and_tags(workspace: Path, script: Path) -> None:
    """The operator's words go into the manifest; a value may hold an equals sign or be empty."""
    run("register", "digits", script, "--description", "A test.", "--tag", "a=b=c", "--tag", "empty=")
    registered = Repository(workspace / "models").get("digits")
    assert registered.description == "A test."
    assert registered.tags == {"a": "b=c", "empty": ""}
    assert registered.signature is None


@pytest.mark.parametrize("tag", ["novalue", "=value", ""])
def test_a_malformed_tag_is_refused(
    workspace: Path, script: Path, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tag without key or equals sign ends in argparse's message and status."""
    with pytest.raises(SystemExit) as refusal:
        run("register", "digits", script, "--tag", tag)
    assert refusal.value.code == 2
    assert "is not KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "error"), [("a b", InvalidSettings), ("digits", RepositoryError)])
def test_a_refused_registration_creates_nothing(
    workspace: Path, tmp_path: Path, name: str, error: type[Exception]
) -> None:
    """A bad name or a path without a model leaves no workspace behind."""
    with pytest.raises(error):
        run("register", name, tmp_path)
    assert not workspace.exists()


def test_register_reads_the_signature_of_onnx(workspace: Path, onnx_file: Path) -> None:
    """The manifest has the signature that ONNX Runtime reports, per row."""
    run("register", "double", onnx_file)
    signature = Repository(workspace / "models").get("double").signature
    assert signature is not None
    assert Signature.from_json(dict(signature)) == Signature(
        (TensorSpec("x", "float32", (3,)),), (TensorSpec("doubled", "float32", (3,)),)
    )


def test_a_sample_is_registered_beside_the_model(workspace: Path, onnx_file: Path, tmp_path: Path) -> None:
    """It is found when the version is served, and its checksum is kept; one that does not fit is refused."""
    sample = tmp_path / "request.json"
    sample.write_text('{"instances": [[1, 2]]}')
    with pytest.raises(
        LoadFailed, match=r"request.json is not what the model takes: Expected x float32\[\?,3\]"
    ):
        run("register", "double", onnx_file, "--sample-input", sample)
    assert not Repository(workspace / "models").names()
    sample.write_text('{"instances": [[1, 2, 3]]}')
    assert run("register", "double", onnx_file, "--sample-input", sample) == 0
    registered = Repository(workspace / "models").get("double")
    registered.verify()
    assert {str(name) for name in registered.files} == {"double.onnx", "sample_input.json"}
    deployment = Deployment("double", 1, "onnx", registered.path, registered.files_dir, 1, 1)
    assert deployment.sample_file == registered.files_dir / "sample_input.json"


def test_a_model_with_a_tokenizer_is_registered_with_texts(workspace: Path, tmp_path: Path) -> None:
    """Its signature is that of a server, and its sample may be texts."""
    write_text_model(tmp_path / "texts")
    (tmp_path / "texts" / "sample_input.json").write_text('{"data": ["how far is it"]}')
    assert run("register", "texts", tmp_path / "texts") == 0
    registered = Repository(workspace / "models").get("texts")
    assert registered.signature is not None
    assert str(Signature.from_json(dict(registered.signature))).startswith("text string[...] -> ")


def test_picture_is_registered_as_a_sample_of_a_picture_model(
    workspace: Path, onnx_file: Path, tmp_path: Path
) -> None:
    """It is tried with it as with any other; a model that takes none is refused with the reason."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = tmp_path / "sample.png"
    pillow.new("L", (3, 1)).save(picture)
    assert (
        run("register", "double", onnx_file, "--image", "size=1x3,channels=1", "--sample-input", picture) == 0
    )
    registered = Repository(workspace / "models").get("double")
    assert {str(name) for name in registered.files} == {"double.onnx", "sample_input.png"}
    assert registered.signature is not None
    with pytest.raises(LoadFailed, match="it is an image, and the settings of the model have no image input"):
        run("register", "double", onnx_file, "--sample-input", picture)


def test_a_registered_sample_takes_the_place_of_the_one_in_the_folder(
    workspace: Path, script: Path, tmp_path: Path
) -> None:
    """It replaces a sample of any other kind of file, which would be found before it."""
    (script / "sample_input.json").write_text("{}")
    picture = tmp_path / "digit.PNG"
    picture.write_bytes(b"a picture")
    assert run("register", "digits", script, "--sample-input", picture) == 0
    files = Repository(workspace / "models").get("digits").files
    assert {str(name) for name in files} == {"score.py", "weights.bin", "sample_input.png"}
    with pytest.raises(RepositoryError, match=r"the sample input nowhere\.json is not a file"):
        run("register", "digits", script, "--sample-input", "nowhere.json")


def test_a_model_that_may_need_a_gpu_is_registered_with_a_note(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note names an operator that the CPU lacks, and the model is registered."""
    _write_onnx(tmp_path / "half.onnx", ("Add", ["x", "x"], ["y"]), kind="BFLOAT16")
    assert run("register", "half", tmp_path / "half.onnx") == 0
    errors = capsys.readouterr().err
    assert "Registering without a signature" in errors
    assert "Could not find an implementation for Add" in errors
    assert Repository(workspace / "models").get("half").signature is None


def test_a_model_that_a_server_would_refuse_is_refused(workspace: Path, tmp_path: Path) -> None:
    """With the server's sentence, and what to do if a script loads it; then it is registered."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    deployment = Deployment("broken", 1, "onnx", path, path.parent, 256, 1 << 20)
    with pytest.raises(LoadFailed) as refused_by_server:
        load(deployment, Device("cpu", 0, "CPU"))
    with pytest.raises(LoadFailed) as refused:
        run("register", "broken", path)
    sentence = str(refused_by_server.value).rstrip(".")
    assert (
        str(refused.value) == f"{sentence}; if an entry script loads it, register it with --framework files"
    )
    assert Repository(workspace / "models").versions("broken") == []
    assert run("register", "broken", path, "--framework", "files") == 0


def test_model_of_small_batches_is_registered_with_its_setting(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server refuses it without that number of rows."""
    _write_onnx(
        tmp_path / "narrow.onnx",
        ("Shape", ["x"], ["shape"]),
        ("Gather", ["shape", "zero"], ["rows"]),
        ("Gather", ["table", "rows"], ["nothing"]),
        ("Add", ["x", "nothing"], ["y"]),
        table=np.zeros(40, np.float32),
        zero=np.array(0),
    )
    assert run("register", "narrow", tmp_path / "narrow.onnx") == 0
    errors = capsys.readouterr().err
    assert "narrow fails on a batch of 64 rows of zeros" in errors
    assert "serve it with max_batch_rows of at most 32" in errors
    assert Repository(workspace / "models").get("narrow").signature is not None


def test_a_probe_looks_for_samples_in_the_folder_of_the_model(workspace: Path, tmp_path: Path) -> None:
    """As a server does: one that does not fit the model refuses it, wherever in the folder the model is."""
    folder = tmp_path / "export"
    _write_onnx(folder / "onnx" / "model.onnx", ("Add", ["x", "x"], ["y"]))
    (folder / "sample_input.json").write_text('{"data": [[1, 2]]}')
    with pytest.raises(LoadFailed, match="sample_input"):
        run("register", "export", folder)
    (folder / "sample_input.json").write_text('{"data": [[1, 2, 3]]}')
    assert run("register", "export", folder) == 0


def test_model_with_rows_larger_than_memory_is_refused(workspace: Path, tmp_path: Path) -> None:
    """With their size, before any are made to try it."""
    onnx = pytest.importorskip("onnx", reason="onnx, of the training extra, is not installed")
    _write_onnx(tmp_path / "vast.onnx", ("ReduceSum", ["x", "axes"], ["y"]), axes=np.array([1]))
    model = onnx.load(tmp_path / "vast.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 45
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, tmp_path / "vast.onnx")
    with pytest.raises(LoadFailed, match=r"vast: .* x \(35,184,372,088,832 numbers\) would take"):
        run("register", "vast", tmp_path / "vast.onnx")


@pytest.mark.parametrize("message", ["by argument", "by variable"])
def test_a_model_that_loads_for_ever_is_given_up(
    workspace: Path, onnx_file: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """After the time that a server would give it; nothing is registered."""
    sleeps = onnx_file.with_name("python")
    sleeps.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeps.chmod(0o755)
    monkeypatch.setattr("stoker.system.child_orders.sys.executable", str(sleeps))
    monkeypatch.setenv("STOKER_LOAD_TIMEOUT_S", "1" if message == "by variable" else "600")
    option = ["--load-timeout-s", "1"] if message == "by argument" else []
    with pytest.raises(LoadTimeout, match="double was not loaded and warmed up within 1 s"):
        run("register", "double", onnx_file, *option)
    assert not Repository(workspace / "models").versions("double")


def _write_onnx(
    path: Path, *nodes: tuple[str, list[str], list[str]], kind: str = "FLOAT", **constants: np.ndarray
) -> None:
    """A model from `x` to `y`, rows of three numbers."""
    onnx = pytest.importorskip("onnx", reason="onnx, of the training extra, is not installed")
    number = getattr(onnx.TensorProto, kind)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(*node) for node in nodes],
        "made",
        [onnx.helper.make_tensor_value_info("x", number, ["n", 3])],
        [onnx.helper.make_tensor_value_info("y", number, ["n", 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def test_an_onnx_file_without_its_weights_is_refused(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They lie beside it under a name of their own, so a copy of the file alone would never load; the folder does."""
    onnx = pytest.importorskip("onnx", reason="onnx, of the training extra, is not installed")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", number, ["n", 512])],
        [helper.make_tensor_value_info("y", number, ["n", 512])],
        [helper.make_tensor("w", number, [512], bytes(2048), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = tmp_path / "ext"
    folder.mkdir()
    onnx.save(
        model, folder / "ext.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    with pytest.raises(RepositoryError, match=f"register the folder: stoker models register ext {folder}$"):
        run("register", "ext", folder / "ext.onnx")
    assert run("register", "ext", folder) == 0
    assert capsys.readouterr().out == "ext:1\n"
    assert Repository(workspace / "models").get("ext").signature is not None


def test_dead_probe_is_no_bad_model(
    workspace: Path, onnx_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the loading process dies itself, the note has its status and last words."""
    monkeypatch.setattr("stoker.system.child_orders.sys.executable", "/bin/false")
    assert run("register", "double", onnx_file) == 0
    assert "ended with status 1: it said nothing" in capsys.readouterr().err


def test_a_saved_model_without_tensorflow_is_registered_with_a_note(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where TensorFlow is not installed the signature stays open."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    monkeypatch.setattr(signature_probe, "find_spec", lambda _: None)
    assert run("register", "saved", tmp_path / "saved") == 0
    assert "TensorFlow is not installed" in capsys.readouterr().err


# Made by TensorFlow 2.21, whose import takes seconds: y = x + x with x float32[?,3], signed as x -> doubled.
SAVED_MODEL = bytes.fromhex(
    "080112e1010a0722057365727665125d0a3b0a0178120b506c616365686f6c6465722a0b0a056474797065120230012a1c0a0573686170"
    "6512133a11120b08ffffffffffffffffff01120208030a190a0179120541646456321a01781a01782a070a015412023001220308aa132a"
    "770a0f73657276696e675f64656661756c7412640a1f0a0178121a0a03783a3010011a11120b08ffffffffffffffffff01120208031225"
    "0a07646f75626c6564121a0a03793a3010011a11120b08ffffffffffffffffff01120208031a1a74656e736f72666c6f772f7365727669"
    "6e672f70726564696374"
)


@pytest.mark.tensorflow
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_register_reads_the_signature_of_a_saved_model(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest has the inputs and outputs of `serving_default`, per row."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(SAVED_MODEL)
    assert run("register", "double", tmp_path / "saved") == 0
    assert capsys.readouterr().out == "double:1\n"
    signature = Repository(workspace / "models").get("double").signature
    assert signature is not None
    assert str(Signature.from_json(dict(signature))) == "x float32[n,3] -> doubled float32[n,3]"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("limit_bytes", "shown"), [(1_000_000, True), (50_000_000, False)])
def test_a_long_copy_shows_its_progress_on_a_terminal(
    workspace: Path, script: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int, shown: bool
) -> None:
    """The bar is there from the limit up, and only for a terminal."""
    monkeypatch.setattr(command, "_PROGRESS_FROM_BYTES", limit_bytes)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run("register", "digits", script)
    assert ("copying" in terminal.getvalue()) is shown
    monkeypatch.setattr(sys, "stderr", plain := io.StringIO())
    run("register", "digits", script)
    assert plain.getvalue() == ""


def test_list_prints_a_table(
    workspace: Path, script: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a version, by name and number, with aligned columns."""
    run("register", "digits", script, "--description", "two\nlines")
    run("register", "double", onnx_file)
    capsys.readouterr()
    assert run("list") == 0
    header, digits, double = capsys.readouterr().out.splitlines()
    assert header.split() == ["MODEL", "FRAMEWORK", "SIZE", "REGISTERED", "DESCRIPTION"]
    assert digits.startswith("digits:1  script     2.5 MB")
    assert digits.endswith("two lines")
    assert double.split()[:2] == ["double:1", "onnx"]
    assert header.index("SIZE") == digits.index("2.5 MB")


def test_list_of_nothing(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty repository gives a line on standard error, and an empty list as JSON."""
    assert run("list") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "No model is registered" in captured.err
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not workspace.exists()


def test_list_shows_the_others_where_a_manifest_is_broken(
    workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output has the readable ones, standard error the others and the remedy; the exit code is not 0."""
    for _ in range(2):
        run("register", "digits", script)
    folder = Repository(workspace / "models").get("digits", 1).folder
    (folder / "manifest.json").unlink()
    complaint = (
        f"stoker models: digits:1: the file manifest.json of {folder} is missing or malformed; "
        "delete the version (stoker models delete digits:1) and register it again\n"
    )
    capsys.readouterr()
    assert run("list") == 2
    (_, digits), err = (text := capsys.readouterr()).out.splitlines(), text.err
    assert (digits.split()[0], err) == ("digits:2", complaint)
    assert run("list", "--json") == 2
    listed = capsys.readouterr()
    assert ([model["version"] for model in json.loads(listed.out)], listed.err) == ([2], complaint)
    assert run("delete", "digits:1") == 0
    assert run("list") == 0


def test_list_as_json(workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` gives the manifests."""
    run("register", "digits", script)
    capsys.readouterr()
    run("list", "--json")
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed == Repository(workspace / "models").get("digits").to_json()


def test_show(workspace: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All facts of a version, its files with their checksums included."""
    run("register", "double", onnx_file, "--tag", "team=vision", "--description", "doubles")
    registered = Repository(workspace / "models").get("double")
    capsys.readouterr()
    assert run("show", "double") == 0
    shown = capsys.readouterr().out
    (record,) = registered.files.values()
    for fact in (
        "double:1",
        "x float32[n,3] -> doubled float32[n,3]",
        "team=vision",
        "doubles",
        record.sha256,
    ):
        assert fact in shown
    run("show", "double:1", "--json")
    assert json.loads(capsys.readouterr().out) == registered.to_json()


def test_show_without_signature(workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script's signature is shown as open."""
    run("register", "digits", script)
    run("show", "digits")
    assert "known when it is loaded" in capsys.readouterr().out


def test_delete(workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A version is deleted when it is named, and a served one only by force."""
    run("register", "digits", script)
    with pytest.raises(InvalidSettings, match="say which version"):
        run("delete", "digits")
    with Repository(workspace / "models").get("digits").hold():
        with pytest.raises(ModelInUse):
            run("delete", "digits:1")
        capsys.readouterr()
        assert run("delete", "digits:1", "--force") == 0
    assert capsys.readouterr().out == "digits:1 is deleted\n"
    assert Repository(workspace / "models").list() == []


def test_labels_are_moved_shown_and_removed(
    workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The current labels are printed; labels that are not named stay."""
    for _ in range(2):
        run("register", "digits", script)
    assert run("label", "digits", "stable=1", "canary=2") == 0
    assert run("label", "digits", "stable=2", "--remove", "canary") == 0
    assert run("label", "digits") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "canary  digits:2",
        "stable  digits:1",
        "stable  digits:2",
        "stable  digits:2",
    ]
    assert stored_labels(workspace / "models" / "digits") == {"stable": 2}
    run("label", "digits", "--remove", "stable")
    assert capsys.readouterr() == ("", "digits has no labels\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["digits", "stable=3"], "digits has no version 3; it has 1"),
        (["digits", "stable"], "such as: stoker models label digits stable=3"),
        (["digits", "a/b=1"], "such as: stoker models label digits stable=3"),
        (["digits", "--remove", "stable"], "digits has no label stable; it has none"),
        (["letters", "stable=1"], "no model 'letters' is registered"),
    ],
)
def test_labels_that_mean_nothing_are_refused(
    workspace: Path, script: Path, arguments: list[str], problem: str
) -> None:
    """A label names a version that there is."""
    run("register", "digits", script)
    with pytest.raises(OperatorError, match=re.escape(problem)):
        run("label", *arguments)
    assert stored_labels(workspace / "models" / "digits") == {}


def test_labels_get_weights_and_lose_them(
    workspace: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They lie beside the labels, whose names they are for."""
    for _ in range(2):
        run("register", "digits", script)
    base = workspace / "models" / "digits"
    run("label", "digits", "stable=1", "next=2", "--canary", "stable=90,next=10", "--canary-by", "X-User")
    assert capsys.readouterr().out.splitlines()[2:] == [
        "next    digits:2",
        "stable  digits:1",
        "canary  stable=90, next=10 by x-user",
    ]
    assert stored_canary(base) == Canary({"stable": 90, "next": 10}, "x-user")
    with pytest.raises(OperatorError, match="digits has no label later; it has next, stable"):
        run("label", "digits", "--canary", "stable=90,later=10")
    with pytest.raises(OperatorError, match="give the weights too"):
        run("label", "digits", "--canary-by", "key")
    for weights in ("stable=90,next=many", "stable=0", "a/b=1", "stable"):
        with pytest.raises(SystemExit):
            run("label", "digits", "--canary", weights)
    run("label", "digits", "--shadow", "next=5")
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "canary  stable=90, next=10 by x-user; a copy of 5 % to next"
    )
    for percents in ("next=101", "next=-1"):
        with pytest.raises(SystemExit):
            run("label", "digits", "--shadow", percents)
    run("label", "digits", "--canary", "off", "--shadow", "off")
    assert stored_canary(base) == Canary()
    (base / "canary.json").write_text('{"weights": {"stable": "most"}}')
    with pytest.raises(RepositoryError, match="cannot be read as weights"):
        stored_canary(base)


def test_a_version_with_a_label_is_not_deleted_by_mistake(workspace: Path, script: Path) -> None:
    """Callers of the label would find nothing."""
    run("register", "digits", script)
    run("label", "digits", "stable=1")
    with pytest.raises(InvalidSettings, match="digits:1 has the label stable; move it first"):
        run("delete", "digits:1")
    assert run("delete", "digits:1", "--force") == 0


def test_server_on_this_machine_is_reached_without_a_proxy(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy of the environment neither reaches it nor sees the admin key; names are quoted in its paths."""
    seen: list[tuple[str, str]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    key = AdminKey(Workspace(workspace).create().keys_dir).ensure().primary
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        assert run("load", "größe (2):3", "--uri", f"http://127.0.0.1:{server.server_port}") == 0
        answering.join()
    assert seen == [("/v2/repository/models/gr%C3%B6%C3%9Fe%20%282%29/versions/3/load", f"Bearer {key}")]
    assert capsys.readouterr().out == "größe (2):3 is loaded\n"


def test_events_of_a_server_are_printed_a_line_each(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of all models or of one; `--json` prints them as they are."""
    events = [
        {"time": "09:12", "model": "digits", "version": "3", "event": "available"},
        {"time": "09:13", "model": "digits", "event": "weights", "text": "all to stable"},
    ]
    paths: list[str] = []

    def answer(_: argparse.Namespace, path: str, **__: Any) -> bytes:
        paths.append(path)
        return json.dumps(events).encode()

    monkeypatch.setattr(model_events, "ask_admin", answer)
    assert run("events") == 0
    shown = "09:12  digits:3  available\n09:13  digits  weights  all to stable\n"
    assert capsys.readouterr().out == shown
    assert run("events", "a b", "--json") == 0
    assert json.loads(capsys.readouterr().out) == events
    assert paths == ["/v2/repository/events", "/v2/repository/models/a%20b/events"]


def test_a_pull_from_a_path_or_an_unknown_scheme_names_an_address(workspace: Path, tmp_path: Path) -> None:
    """The error of a folder of this machine has its `file://` address."""
    for text, shown, example in (
        (str(tmp_path), str(tmp_path), tmp_path.as_uri()),
        ("ftp://me:secret@x/y", "ftp://…", "s3://bucket/models/digits/3"),
    ):
        with pytest.raises(InvalidSettings) as refused:
            run("pull", text)
        assert str(refused.value) == f"{shown} is no address; write for instance {example}"


def test_pull_of_a_folder_that_was_not_pushed_is_refused(workspace: Path, script: Path) -> None:
    """The message says how to register it."""
    with pytest.raises(InvalidSettings, match="has no version that 'stoker models push' has sent; register"):
        run("pull", script.as_uri())


def test_a_folder_of_pushed_versions_is_served(workspace: Path, script: Path, tmp_path: Path) -> None:
    """As a repository: a pushed version has no lease file, so the server that holds it makes one."""
    run("register", "digits", script)
    run("push", "digits:1", (tmp_path / "store/digits/1").as_uri())
    (source,) = discover(tmp_path / "store")
    assert source.registered is not None
    with source.registered.hold():
        source.registered.verify()


def test_a_server_that_is_not_there(workspace: Path) -> None:
    """The message says where it was looked for."""
    with pytest.raises(OperatorError, match=r"the server at .* cannot be reached: \[Errno 111\]"):
        run("load", "digits", "--uri", "http://127.0.0.1:1")
    with pytest.raises(InvalidSettings, match="file:///etc is no address of a server"):
        run("unload", "digits", "--uri", "file:///etc")
    with pytest.raises(InvalidSettings, match="/score is no address of a server; it has to be like http"):
        run("load", "digits", "--uri", "http://127.0.0.1:1/score")


def test_the_port_of_the_environment_is_where_the_server_is(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`STOKER_PORT` sets the port for commands and server; a port that only the server knows is read from it."""
    monkeypatch.setenv("STOKER_PORT", "1")
    with pytest.raises(OperatorError, match=r"the server at http://127\.0\.0\.1:1 cannot be reached"):
        run("load", "digits")
    for variable, address in (("", "8080"), ("tcp://10.0.0.1:9000", "8080"), ("09000", "9000")):
        monkeypatch.setenv("STOKER_PORT", variable)
        assert server_here() == f"http://127.0.0.1:{address}"
        with monkeypatch.context() as secure:
            # The server of this shell speaks TLS.
            secure.setenv("STOKER_TLS_CERT", "tls.crt")
            assert server_here() == f"https://127.0.0.1:{address}"
    for variable in ("0", "http", "65536"):
        monkeypatch.setenv("STOKER_PORT", variable)
        with pytest.raises(InvalidSettings, match=f"STOKER_PORT={variable} does not say where the server is"):
            run("unload", "digits")


def test_register_and_import_take_addresses(workspace: Path, tmp_path: Path) -> None:
    """The message about an address that cannot be fetched leaves its query out."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    for words in (["register", "digits"], ["import"]):
        with pytest.raises(OperatorError) as refused:
            run(*words, f"file://{tmp_path}/gone.onnx?sig=secret")
        assert str(refused.value) == f"there is nothing at file://{tmp_path}/gone.onnx"
    assert not (workspace / "models").exists() or Repository(workspace / "models").names() == []


def test_pull_registers_the_pushed_version_once(
    workspace: Path,
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Under its number, also where it was deleted; not again, and not in the place of another."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    address = (tmp_path / "store").as_uri()
    for description in ("first", "second"):
        assert run("register", "digits", script, "--description", description) == 0
    pushed = Repository(workspace / "models").get("digits", 2)
    assert run("push", "digits:2", address) == 0
    capsys.readouterr()
    there = tmp_path / "there"
    monkeypatch.setenv("STOKER_WORKSPACE", str(there))
    repository = Repository(there / "models")
    for _ in range(2):
        assert run("pull", address) == 0
    pulled = repository.get("digits")
    assert repository.versions("digits") == [2]
    same = dataclasses.replace(
        pulled, folder=pushed.folder, created_at=pushed.created_at, source=pushed.source
    )
    assert same == pushed
    repository.delete("digits", 2)
    assert run("pull", address, "--name", "other") == run("pull", address) == 0
    assert capsys.readouterr().out.split() == ["digits:2", "digits:2", "other:2", "digits:2"]
    (script / "weights.bin").write_bytes(b"others")
    assert run("register", "digits", script) == 0
    assert repository.versions("digits") == [2, 3]
    repository.delete("digits", 2)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "third"))
    for _ in range(2):
        assert run("register", "digits", script) == 0
    with pytest.raises(
        OperatorError, match="digits:2 is registered already, with other files; give the model"
    ):
        run("pull", address)


@pytest.mark.parametrize("words", [("pull",), ("register", "again")])
def test_pull_and_register_without_the_store_register_nothing(
    workspace: Path, script: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The copy of an earlier time is not the version that is there now."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    assert run("register", "digits", script) == 0
    store = tmp_path / "store"
    address = store.as_uri() if words == ("pull",) else f"{store.as_uri()}/model"
    assert run("push", "digits:1", store.as_uri()) == 0
    assert run(*words, address, *(("--name", "again") if words == ("pull",) else ())) == 0
    store.rename(tmp_path / "away")
    with pytest.raises(OperatorError, match="there is nothing at"):
        run(*words, address, *(("--name", "new") if words == ("pull",) else ()))
    assert Repository(workspace / "models").names() == ["again", "digits"]
    assert Repository(workspace / "models").versions("again") == [1]


def test_push_and_pull_show_no_queries(
    workspace: Path, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are passwords, as in signed addresses; pushed files come back."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    assert run("register", "digits", script) == 0
    address = f"file://{tmp_path}/there?sig=secret"
    assert run("push", "digits", address) == 0
    assert run("pull", address, "--name", "again") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"file://{tmp_path}/there", "again:1"]
    (tmp_path / "there?sig=secret" / "manifest.json").unlink()
    with pytest.raises(InvalidSettings, match="has no version that 'stoker models push' has sent") as refused:
        run("pull", address)
    assert "secret" not in str(refused.value)
    assert {str(name) for name in Repository(workspace / "models").get("again", 1).files} == {
        "score.py",
        "weights.bin",
    }
