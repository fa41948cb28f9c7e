"""A script logs to its run, in a run and outside of one."""

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.patience import PROGRAM_S

import stoker_run
from stoker_run import KerasLogger, OfflineRun, Run
from stoker_run.exceptions import NotOffered, RunEnvironmentException, UserErrorException
from stoker_run.faces.azureml.logging import get_azureml_logger
from stoker_run.json_files import read_json
from stoker_run.records import read_events

FACES = Path(stoker_run.__file__).parent / "faces"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run of this process."""
    for name, value in {
        "STOKER_RUN_ID": "digits_1_a",
        "STOKER_EXPERIMENT": "digits",
        "STOKER_ATTEMPT_DIR": str(tmp_path / "attempt"),
        "STOKER_WORK_DIR": str(tmp_path / "work"),
        "STOKER_INPUTS": json.dumps({"digits": "/data/digits"}),
        "AZUREML_ARM_WORKSPACE_NAME": "demo",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "work" / "outputs").mkdir(parents=True)
    found = Run.get_context()
    assert isinstance(found, Run)
    return found


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> OfflineRun:
    monkeypatch.delenv("STOKER_ATTEMPT_DIR", raising=False)
    found = Run.get_context()
    assert isinstance(found, OfflineRun)
    return found


def test_a_script_knows_its_run(run: Run) -> None:
    """Id, experiment, workspace, inputs by name; the same object each time."""
    assert run is stoker_run.current() is Run.get_context(allow_offline=False)
    assert (run.id, run.experiment.name, run.experiment.workspace.name) == ("digits_1_a", "digits", "demo")
    assert run.input_datasets["digits"] == "/data/digits"
    with pytest.raises(KeyError, match="it has: digits"):
        run.input_datasets["letters"]
    assert (run.status, run.parent, run.number) == ("Running", None, 1)


def test_every_kind_of_metric_is_logged(run: Run, tmp_path: Path) -> None:
    """And reads back; files of images are among the run's."""
    (tmp_path / "a.jpg").write_bytes(b"jpg")
    plot = SimpleNamespace(savefig=lambda file, **given: Path(file).write_bytes(given["format"].encode()))
    run.log("loss", np.float32(0.5), step=np.int64(3))
    run.log("loss", math.inf)
    run.log_list("list", np.array([1, 2]))
    run.log_row("row", x=1, y=np.float64(2))
    run.log_table("table", {"a": [1, 2]})
    run.log_confusion_matrix("matrix", json.dumps({"data": {"matrix": [[1]]}}))
    for log in (run.log_accuracy_table, run.log_residuals, run.log_predictions):
        log(log.__name__, {"data": {}})
    run.log_image("a b", path=str(tmp_path / "a.jpg"))
    run.log_image("plot", plot=plot)
    found = run.get_metrics()
    images = [found.pop("a b"), found.pop("plot")]
    assert found == {
        "loss": [0.5, math.inf],
        "list": [1, 2],
        "row": {"x": 1, "y": 2.0},
        "table": {"a": [1, 2]},
        "matrix": {"data": {"matrix": [[1]]}},
        "log_accuracy_table": {"data": {}},
        "log_residuals": {"data": {}},
        "log_predictions": {"data": {}},
    }
    assert run.get_metrics("list") == {"list": [1, 2]}
    assert sorted(run.get_file_names()) == sorted(images)
    assert (run.recorder.folder / "files" / images[1]).read_bytes() == b"png"


def test_invalid_value_is_refused_before_logging(run: Run, tmp_path: Path) -> None:
    """An invalid value, file or name raises an error before anything is written."""
    for refused in (
        lambda: run.log("list", [1]),
        lambda: run.log_image("none"),
        lambda: run.log_image("both", path="a.png", plot=1),
        lambda: run.log_image("missing", path=str(tmp_path / "missing.png")),
        lambda: run.log_confusion_matrix("matrix", "{"),
        lambda: run.upload_file("../outside", __file__),
        lambda: run.upload_file("inside", tmp_path / "missing"),
        lambda: run.register_model("m", "outputs/missing"),
        run.create_children,
        lambda: run.create_children(101),
    ):
        with pytest.raises(UserErrorException):
            refused()
    assert run.get_metrics() == {}


def test_tags_names_and_the_end_are_events(run: Run) -> None:
    """Calls of a script about its state are kept, and decide nothing."""
    run.set_tags({"a": 1, "b": None})
    run.remove_tags(["b"])
    run.add_properties({"p": 1})
    run.display_name = "first"
    with run:
        pass
    run.fail("too late")
    events = run.recorder.events()
    assert read_events(events)["tag"] == run.tags == {"a": "1"}
    assert run.properties == {"p": "1"}
    states = [(event["e"], event["v"]) for event in events if event["e"] in ("name", "status")]
    assert states == [("name", "first"), ("status", {"status": "Completed"})]
    run.cancel()
    assert read_json(run.recorder.folder / "stop.json") == {"grace_s": None, "reason": "canceled"}


def test_files_and_models_of_a_script(run: Run, tmp_path: Path) -> None:
    """Uploads lie where their names say; a model is registered when the script has ended."""
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.txt").write_text("a")
    run.upload_folder("data", str(source))
    run.upload_file("outputs/model.bin", source / "sub" / "a.txt")
    assert run.get_file_names() == ["data/sub/a.txt", "outputs/model.bin"]
    run.download_file("data/sub/a.txt", str(tmp_path / "copy.txt"))
    assert (tmp_path / "copy.txt").read_text() == "a"
    model = run.register_model("m", "outputs/model.bin", tags={"k": "v"}, sample_input=object())
    assert (model.name, model.version) == ("m", None)
    (request,) = [event["v"] for event in run.recorder.events() if event["e"] == "register"]
    assert request == {"model_name": "m", "model_path": "outputs/model.bin", "tags": {"k": "v"}}


def test_children_are_runs_of_their_own(run: Run) -> None:
    """With metrics and an end of their own, found again by the parent."""
    with run.child_run("first") as child:
        child.log("m", 1)
    with pytest.raises(ZeroDivisionError), run.child_run() as failing:
        1 / 0  # noqa: B018
    assert [one.id for one in run.get_children()] == ["digits_1_a_1", "digits_1_a_0"]
    inner = failing.child_run("inner")
    inner.tag("kind", "inner")
    assert [one.id for one in run.get_children(recursive=True, tags={"kind": "inner"})] == ["digits_1_a_1_0"]
    assert [one.id for one in run.get_children(status="Failed")] == ["digits_1_a_1"]
    assert run.get_metrics(recursive=True) == {
        "digits_1_a": {},
        "digits_1_a_0": {"m": 1},
        "digits_1_a_1": {},
        "digits_1_a_1_0": {},
    }
    for refused in ("../up", "a\nb", "", "a" * 256):
        with pytest.raises(UserErrorException, match="cannot be the id of a child run"):
            run.child_run(run_id=refused)
    ends = [read_json(one.recorder.folder / "exit.json") for one in (child, failing)]
    assert [(end["exit_status"], end["reason"]) for end in ends] == [
        (0, None),
        (1, "ZeroDivisionError: division by zero"),
    ]
    tagged = run.create_children(tag_key="fold", tag_values=[1, 2])
    assert [one.tags for one in tagged] == [{"fold": "1"}, {"fold": "2"}]


def test_unsupported_feature_of_a_run_names_the_remedy(run: Run, offline: OfflineRun) -> None:
    """Unsupported methods say what to do, in a run and outside; `hasattr` finds none."""
    with pytest.raises(NotOffered, match=r"run\.get_secret is not offered in a script"):
        run.get_secret("x")
    with pytest.raises(NotOffered, match="submit the script"):
        offline.download_files()
    assert not hasattr(offline, "experiment")
    with pytest.raises(NotOffered, match=r"workspace\.get_default_datastore is not offered in a script"):
        run.experiment.workspace.get_default_datastore()
    with pytest.raises(RunEnvironmentException):
        Run.get_context(allow_offline=False)


def test_a_script_outside_of_a_run_prints_each_call(
    offline: OfflineRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines have Azure's words; logged values are known, and a step is taken."""
    offline.log("loss", 0.25, step=1)
    offline.log_list("list", [1, 2])
    offline.log_row("row", x=1)
    offline.tag("k", "v")
    offline.upload_file("a", "b.txt")
    assert capsys.readouterr().out.splitlines() == [
        "Attempted to log scalar metric loss:",
        "0.25",
        "Attempted to log list metric list:",
        "[1, 2]",
        "Attempted to log row metric row:",
        "{'x': 1}",
        "Attempted to add tag k with value v",
        "Attempted to track file a at b.txt",
    ]
    assert offline.get_metrics() == {"loss": 0.25, "list": [1, 2], "row": {"x": 1}}
    assert offline.id.startswith("OfflineRun_")


def test_workbench_logs_numbers_lists_and_dicts(run: Run) -> None:
    """By one function."""
    logger = get_azureml_logger()
    logger.log("Accuracy", 0.5)
    logger.log("list", (1, 2))
    logger.log("dict", {"a": 1})
    assert run.get_metrics() == {"Accuracy": 0.5, "list": [1, 2], "dict": {"a": 1}}


def test_keras_reports_to_the_run(run: Run) -> None:
    """Epochs have their numbers; other calls of any Keras are accepted."""
    logger = KerasLogger()
    logger.set_params({"epochs": 2})
    logger.on_train_begin()
    for epoch in range(2):
        for batch in range(2):
            logger.on_train_batch_end(batch, {"loss": 1.0, "size": 3})
        logger.on_epoch_end(epoch, {"loss": np.float32(0.5)})
    assert run.get_metrics() == {"loss": [0.5, 0.5]}
    assert not logger._implements_test_batch_hooks()
    assert not hasattr(logger, "other")


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_classes_of_submitting_code_can_be_imported(run: Run) -> None:
    """Scripts import them beside Run; using one says what to do."""
    core = loaded("a_core", FACES / "azureml" / "core" / "__init__.py")
    assert core.Run is Run
    assert core.__version__ == core.VERSION
    with pytest.raises(NotOffered, match=r"Dataset.get_by_name is not offered in a script: pass the data"):
        core.Dataset.get_by_name(None, "x")
    with pytest.raises(NotOffered, match="it belongs into the code that submits the run"):
        core.Workspace("a", "b", "c")


def test_a_relaxed_run_has_numpys_old_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that exist stay as they are, and a line lists the added ones."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv("STOKER_RELAXED_SAID", raising=False)
    relaxed = loaded("a_sitecustomize", FACES / "relaxed" / "sitecustomize.py")
    old = SimpleNamespace(
        __version__="2.4", bool="numpy's own", float64=np.float64, complex128=1, str_=2, nan=3, inf=4
    )
    add: Callable[[Any], None] = relaxed.add_former_names
    add(old)
    assert (old.float, old.bool, old.float_) == (float, "numpy's own", np.float64)
    assert capsys.readouterr().err == (
        "stoker_run: numpy 2.4 has no numpy.float, numpy.int, numpy.object, numpy.str, numpy.complex; "
        "they are there for this run\n"
    )


def test_a_relaxed_run_of_tensorflow_1_imports_version_1_of_its_api(tmp_path: Path) -> None:
    """By `import` and by `from`, in the script and in modules below; what version 1 lacks is that of today."""
    package = tmp_path / "tensorflow"
    (package / "compat").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from tensorflow.compat import v1 as _v1\nfrom tensorflow import compat\n__version__ = '2.99'\nnew = 'new'\n"
    )
    (package / "compat" / "__init__.py").write_text("from tensorflow.compat import v1\n")
    (package / "compat" / "v1").mkdir()
    (package / "compat" / "v1" / "__init__.py").write_text(
        "from tensorflow.compat.v1 import train\nswitched = []\nplaceholder = 'placeholder'\n"
        "def disable_v2_behavior():\n    switched.append(1)\n"
    )
    (package / "compat" / "v1" / "train.py").write_text("Saver = 'saver'\n")
    code = (
        "import tensorflow as tf\nfrom tensorflow.train import Saver\nimport tensorflow.compat.v1 as v1\n"
        "print(tf.placeholder, Saver, tf.new, tf.switched, tf.__version__, v1.train.Saver, hasattr(tf, 'none'))"
    )
    for variable, expected in (("1", "placeholder saver new [1] 2.99 saver False\n"), ("", "")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": f"{FACES / 'relaxed'}:{tmp_path}", "STOKER_TENSORFLOW_1": variable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == expected
        assert ("tensorflow.compat.v1 of TensorFlow 2.99" in done.stderr) == bool(variable)


def test_a_script_outside_of_a_run_reads_back_its_own_calls(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status, labels, children and metrics, so a script that asks for them goes on as it would in a run."""
    offline = OfflineRun()
    with offline.child_run("part") as part:
        part.log_table("table", {"a": [1, 2]})
    assert part.id == f"{offline.id}.part"
    assert list(offline.get_children()) == [part]
    lines = [f"[START] Run {part.id} context", "Attempted to log table metric table:", "{'a': [1, 2]}"]
    assert capsys.readouterr().out.splitlines() == [*lines, f"[STOP] Run {part.id} context"]
    offline.set_tags({"a": "1", "b": "2"})
    offline.remove_tags(["b", "none"])
    offline.add_properties({"origin": "here"})
    offline.add_properties({"origin": "there"})
    assert (offline.tags, offline.properties) == ({"a": "1"}, {"origin": "here"})
    offline.upload_files(["x", "y"], ["x.txt", "y.txt"])
    offline.upload_folder("z", "folder")
    offline.flush()
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "Attempted to track file x at x.txt",
        "Attempted to track file y at y.txt",
        "Attempted to track folder z at folder",
        f"Attempted to flush run with id {offline.id}",
    ]
    assert part.get_metrics("table") == {"table": {"a": [1, 2]}}
    assert part.get_metrics("none") == {}
    assert offline.get_status() == "Running"
    for end, status in ((offline.cancel, "Canceled"), (offline.complete, "Completed")):
        end()
        assert offline.get_status() == status
    offline.fail("no data", error_code=3)
    assert offline.status == "Failed"
    assert capsys.readouterr().out == "Run failed with error code 3:\nno data\n"
    assert repr(offline) == f"OfflineRun(id={offline.id!r})"


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("import azureml.mlflow", ""),
        ("from azureml.telemetry import set_diagnostics_collection as f; f(send_diagnostics=True)", ""),
        (
            "import azureml.tensorboard",
            "azureml.tensorboard is not offered: it belongs into the code that submits",
        ),
        ("from azureml.opendatasets import MNIST", "azureml.opendatasets is not offered: download the data"),
        ("from azureml import interpret", "azureml.interpret is not offered: explain the model"),
        ("from azureml.core import Nothing", "cannot import name 'Nothing'"),
    ],
)
def test_modules_of_azure_in_a_script_work_or_name_the_remedy(statement: str, complaint: str) -> None:
    """As in the code that submits: no import ends in a bare ModuleNotFoundError."""
    done = subprocess.run(
        [sys.executable, "-c", statement],
        env={"PYTHONPATH": f"{FACES}:{FACES.parents[1]}"}, check=False, capture_output=True, text=True,
        timeout=PROGRAM_S,
    )  # fmt: skip
    assert complaint in done.stderr
    assert (done.returncode == 0) == (not complaint)
