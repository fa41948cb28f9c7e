"""The how-to's deployment code, unchanged, on this machine: `deploy.py` to its end, `client.py` against a service.

`client.py` downloads MNIST from a host that no longer has it: its download is replaced by a copy, nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import PROGRAM_S

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import Environment, Model, Webservice, Workspace  # isort: skip
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksWebservice
from azureml.exceptions import WebserviceException

SHARED = Path(os.environ.get("STOKER_TEST_SHARED", Path(__file__).parents[3] / "shared"))
HOW_TO = SHARED / "azure"
MNIST = SHARED / "data" / "mnist"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not HOW_TO.is_dir(),
        reason=f"the how-to is not at {SHARED}; set STOKER_TEST_SHARED to the folder with azure/ and data/",
    ),
]

# TensorFlow never gives its memory back: it is imported in a process of its own.
TRAIN = """
import sys
from pathlib import Path
from stoker_training import exports
from stoker_training.fitting import build

folder = Path(sys.argv[1])
exports.write_checkpoint(build("softmax"), folder / exports.CHECKPOINT)
"""

# Answers with the number of bright pixels of each image: known without a model, and wrong for any other image.
COUNTS = """
import json
import os
import numpy as np
from azureml.core.model import Model

def init():
    global threshold
    path = os.path.join(os.getenv("AZUREML_MODEL_DIR"), "threshold.txt")
    threshold = float(open(path).read())
    print("the threshold is", threshold, "from", os.path.basename(Model.get_model_path("counts")))

def run(raw_data):
    data = np.array(json.loads(raw_data)["data"])
    return (data > threshold).sum(axis=1).tolist()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a workspace whose services end with the test."""
    for variable in [name for name in os.environ if name.startswith(("STOKER_", "AZUREML_"))]:
        monkeypatch.delenv(variable)
    for name, value in {"DEVICE": "cpu", "FRONTENDS": "1", "DRAIN_GRACE_S": "0"}.items():
        monkeypatch.setenv(f"STOKER_{name}", value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".stoker").mkdir(mode=0o700)
    yield tmp_path
    for service in Webservice.list(Workspace.from_config()):
        service.delete()


@pytest.mark.tensorflow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_deploy_py_runs_to_its_end(folder: Path) -> None:
    """In a folder with score.py and myenv.yml: the service becomes healthy, and is gone afterwards."""
    for name in ("deploy.py", "score.py", "myenv.yml"):
        shutil.copy(HOW_TO / name, folder)
    subprocess.run([sys.executable, "-c", TRAIN, "outputs"], check=True, capture_output=True)
    ws = Workspace.from_config()
    Model.register(ws, model_path="outputs/model", model_name="tf-dnn-mnist")

    with _one_core():
        done = subprocess.run(
            [sys.executable, "-m", "stoker.azure", "deploy.py"],
            check=False,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "aks-gpu: this machine stands for the cluster" in done.stdout
    assert "myenv.yml (user-managed): " in done.stdout
    assert (
        "replicas 3 replicas were asked for, 1 runs: on the CPU there is at most one for each core"
        in done.stdout
    )
    assert re.search(
        r'^Running\.+\nSucceeded\nAKS service creation operation finished, operation "Succeeded"\nHealthy\n\Z',
        done.stdout,
        re.MULTILINE,
    ), done.stdout
    assert (ws.webservices, ws.compute_targets, list(ws.models)) == ({}, {}, ["tf-dnn-mnist"])
    assert not any(_in(folder))


@contextmanager
def _one_core() -> Iterator[None]:
    """Start processes that may use one core, whatever the machine has: TensorFlow is imported once, not thrice."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _in(folder: Path) -> Iterator[int]:
    """Processes of a server with a workspace in the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if str(folder / ".stoker") in command:
            yield int(process.name)


def _copy(_: str, filename: str) -> None:
    name = Path(filename).name.replace("test-", "t10k-").removesuffix(".gz")
    shutil.copy(
        MNIST
        / {"t10k-images": "t10k-images-idx3-ubyte.gz", "t10k-labels": "t10k-labels-idx1-ubyte.gz"}[name],
        filename,
    )


def _client(service: Any, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Run `client.py` with the service; returns its variables and what it printed."""
    capsys.readouterr()
    variables = runpy.run_path(str(HOW_TO / "client.py"), init_globals={"aks_service": service})
    return variables, capsys.readouterr().out


@pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST is not at {MNIST}")
def test_client_py_and_later_code_use_a_service(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service is kept alive: the client's body is scored, then later code changes the service."""
    pytest.importorskip("requests")
    (folder / "counts.py").write_text(COUNTS)
    (folder / "threshold.txt").write_text("0.5")
    ws = Workspace.from_config()
    model = Model.register(ws, "threshold.txt", "counts")
    config = InferenceConfig("counts.py", environment=Environment("counts"))
    service = Model.deploy(ws, "digits", [model], config, AksWebservice.deploy_configuration(num_replicas=1))
    service.wait_for_deployment(show_output=True)
    monkeypatch.setattr("urllib.request.urlretrieve", _copy)

    with np.printoptions(legacy=False):
        variables, printed = _client(service, capsys)
    assert "np.float64(0.0)" in variables["input_data"]
    assert f"POST to url {service.scoring_uri}\n" in printed
    image = variables["X_test"][variables["random_index"]]
    assert printed.splitlines()[-1] == f"prediction: [{(image > 0.5).sum()}]"

    later = Webservice(Workspace.from_config(), "digits")
    assert later.run('{"data": [[0.1, 0.9, 0.8]]}') == [2]
    service.regen_key("Primary")
    assert later.run('{"data": [[0.1, 0.9, 0.4]]}') == [1], "with the new key"
    assert "the threshold is 0.5 from threshold.txt" in later.get_logs()

    (folder / "broken.py").write_text(
        "def init():\n    raise OSError('no weights')\ndef run(raw_data): ...\n"
    )
    broken = Model.deploy(ws, "broken", [], InferenceConfig("broken.py"))
    with pytest.raises(WebserviceException, match=r"(?s)state is Failed: .*OSError: no weights"):
        broken.wait_for_deployment()

    later.update(token_auth_enabled=True)
    later.wait_for_deployment()
    assert later.run('{"data": [[0.9]]}') == [1], "with a token"
    with pytest.raises(WebserviceException, match=r"get_token\(\)"):
        service.get_keys()
    service.delete()
    assert not any(path.name == "digits" for path in (folder / ".stoker" / "services").iterdir())
