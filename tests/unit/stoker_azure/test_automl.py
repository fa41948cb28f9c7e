"""Scripts that Azure's AutoML has written run as they are, where their model can be loaded."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import pytest

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.script import load_script
from stoker.scripts.call_watchdog import Watchdog
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest
from stoker_azure import automl

SCRIPTS = Path(__file__).parents[2] / "entry_scripts" / "automl"
ROWS = [{"age": 20.0, "visits": 1}, {"age": 70.0, "visits": 9}]
Load = Callable[[str], Runtime]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load one of the scripts with the model `model.pkl`."""
    # Here, as each test process imports this file, whichever tests it runs.
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(os, "environ", {**os.environ, "AZUREML_MODEL_DIR": str(tmp_path)})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Watchdog, "start", lambda self: None)
    frame = pd.DataFrame({"age": [20.0, 30, 60, 70], "visits": [1, 2, 8, 9]})
    joblib.dump(LogisticRegression().fit(frame, [0, 0, 1, 1]), tmp_path / "model.pkl")

    def load(name: str) -> Runtime:
        deployment = Deployment("churn", 1, "script", SCRIPTS / name, tmp_path, 8, 1000)
        return load_script(deployment, Device("cpu", 0, "a processor"), 1)

    yield load
    sys.modules.pop("entry_module", None)
    logging.getLogger("azureml").setLevel(logging.NOTSET)


def answer(runtime: Runtime, body: Any) -> Any:
    """The answer of a script to a request."""
    packed = ScriptRequest(b"id", json.dumps(body).encode()).pack()
    answered = ScriptAnswer.unpack(runtime.run([[packed]])[0][0])
    assert answered.status == 200, answered.body
    return json.loads(answered.body)


def test_a_script_of_sdk_v1_runs(load: Load) -> None:
    """Frames are converted, and the other method can be chosen."""
    runtime = load("score.py")
    assert json.loads(answer(runtime, {"data": ROWS})) == {"result": [0, 1]}
    (first, second) = json.loads(answer(runtime, {"data": ROWS, "method": "predict_proba"}))["result"]
    assert sum(first) == pytest.approx(1)
    assert second[1] > 0.5


def test_a_script_of_sdk_v2_runs(load: Load) -> None:
    """The frame lies in `Inputs`, beside `GlobalParameters` that may be left out."""
    runtime = load("score_v2.py")
    assert answer(runtime, {"Inputs": {"data": ROWS}}) == {"Results": [0, 1]}
    body = {"Inputs": {"data": ROWS}, "GlobalParameters": {"method": "predict_proba"}}
    assert len(answer(runtime, body)["Results"][0]) == 2


def test_model_of_automl_names_a_remedy(load: Load, tmp_path: Path) -> None:
    """Its classes are not here: the load fails with a line about it, and the log has it under AutoML's name."""
    (tmp_path / "model.pkl").write_bytes(b"cazureml.automl.runtime.shared.model_wrappers\nPreFittedVoting\n.")
    with pytest.raises(LoadFailed, match=r"Advice: the model consists of classes of Azure's AutoML"):
        load("score.py")


def test_logged_error_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """`log_traceback` is critical by default, and may have a text of its own."""
    error = ValueError("no model")
    automl.log_traceback(error, logging.getLogger("azureml.automl.core.scoring_script"))
    automl.log_traceback(error, None, override_error_msg="hidden", is_critical=False)
    first, second = caplog.records
    assert (first.levelname, first.message) == ("CRITICAL", "no model")
    assert (second.levelname, second.message, second.name) == ("ERROR", "hidden", "azureml.automl")
    assert first.exc_info is not None
    assert first.exc_info[1] is error


@pytest.mark.parametrize(
    ("verbosity", "level"), [("WARNING", 30), ("debug", 10), (logging.ERROR, 40), ("LOUD", 0)]
)
def test_verbosity_is_the_level_of_the_loggers(verbosity: Any, level: int) -> None:
    """A name that is none changes nothing and raises nothing: the script would be without its logger."""
    azureml = logging.getLogger("azureml")
    try:
        automl.set_verbosity(verbosity)
        assert azureml.level == level
    finally:
        azureml.setLevel(logging.NOTSET)


def test_nothing_is_sent() -> None:
    """The calls about telemetry take their arguments and return."""
    automl.enable_telemetry(automl.INSTRUMENTATION_KEY, component_name="automl")
    automl.update_custom_dimensions({"model_name": "churn"})
    automl.set_diagnostics_collection(send_diagnostics=False)


def test_classes_of_training_are_explained() -> None:
    """A script that imports `AutoMLConfig` gets an error with the remedy."""
    import azureml.train.automl

    with pytest.raises(ImportError, match="AutoMLConfig is not offered: train by a script"):
        exec("from azureml.train.automl import AutoMLConfig")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from azureml.train.automl import nothing")
    assert azureml.train.automl.__name__ == "stoker_azure.automl"
