"""The how-to's code, unchanged, and pods that run: `deploy.py`, with `client.py` before what it deletes in the end.

`client.py` downloads MNIST from a host that no longer has it, and needs the printing of NumPy 1: both come before it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.test_apply import versions
from tests.cluster.test_azure_sdk import HOW_TO, SHARED
from tests.pods import images
from tests.pods.images import Layer
from tests.pods.node import Node

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main
from stoker_cluster.access import Cluster

from azureml.core import Model, Workspace  # isort: skip

MNIST = SHARED / "data" / "mnist"
IMAGE = "stoker:how-to"
BINDING = ["--context", "test", "--image", IMAGE]
# GPUs of the tests compute nothing: of a slice a server takes what there is, and that is the CPU.
GPUS = ["--gpu-resource", "nvidia.com/mig-1g.10gb"]
SEED, TIMES = 1, 20
END = "\naks_service.delete()\n"

# TensorFlow never gives its memory back: it is imported in a process of its own.
TRAIN = """
import sys
from pathlib import Path
import numpy as np
from stoker_training import digits, exports, fitting, frameworks
from stoker_training.spec import TrainingSpec

spec = TrainingSpec("softmax", epochs=2, data=Path(sys.argv[1]))
data = digits.load_digits(spec.data, print)
fit = fitting.fit(spec, data, frameworks.strategy(frameworks.found_gpus()), print, lambda *_: None)
prefix = Path("outputs") / exports.CHECKPOINT
exports.write_checkpoint(fit.model, prefix)
np.save("logits.npy", exports.checkpoint_logits(prefix, data.test_rows))
"""

BEFORE = f"""
import shutil
import urllib.request
from pathlib import Path
import numpy

def copy(url, filename):
    shutil.copy(Path({str(MNIST)!r}) / url.rpartition("/")[2], filename)

urllib.request.urlretrieve = copy
numpy.set_printoptions(legacy="1.25")
numpy.random.seed({SEED})
"""
CLIENT = f"""
for _ in range({TIMES}):
    exec(Path("client.py").read_text())
"""

pytestmark = [
    pytest.mark.skipif(
        not (HOW_TO.is_dir() and MNIST.is_dir()),
        reason=f"the how-to and MNIST are not at {SHARED}; set STOKER_TEST_SHARED",
    ),
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


def bring_image(
    plane: ControlPlane, machine: Node, namespace: str, layers: list[Layer], workspace: Path
) -> None:
    """Build the image as its user would: with TensorFlow, and the files that `deploy` has written."""
    plane.eventually(
        f"/apis/apps/v1/namespaces/{namespace}/deployments", lambda found: found["items"], within_s=600
    )
    (files,) = (workspace / "services").glob("*/files")
    inside = {
        Path("/models", files.parent.name, file.relative_to(files)): file
        for file in files.rglob("*")
        if file.is_file()
    }
    python, server = layers
    own = images.layer(machine.folder / "how-to.tar", inside)
    contents = {f"docker.io/library/{IMAGE}": [python, images.further("tensorflow"), server, own]}
    archive = images.write_archive(machine.folder / "how-to.image.tar", contents, images.SERVE)
    machine.ctr("images", "import", archive)
    archive.unlink()


@pytest.fixture
def logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The registered model's logits of test images; the current folder is its workspace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    subprocess.run([sys.executable, "-c", TRAIN, MNIST], check=True, stdout=subprocess.DEVNULL)
    Model.register(Workspace.from_config(), "outputs/model", "tf-dnn-mnist")
    found: np.ndarray = np.load("logits.npy")
    return found


def test_the_code_of_the_how_to_deploys_asks_and_deletes(
    cluster: Cluster,
    plane: ControlPlane,
    machine: Node,
    layers: list[Layer],
    namespace: str,
    logits: np.ndarray,
    tmp_path: Path,
) -> None:
    """Three pods are Healthy, each answer is the model's, and the service leaves nothing behind."""
    before = versions(cluster, namespace)
    assert main(["compute", "bind", "aks-gpu", "--namespace", namespace, *BINDING, *GPUS]) == 0
    for file in HOW_TO.glob("*.*"):
        shutil.copy(file, ".")
    deploying = Path("deploy.py").read_text()
    assert deploying.count(END) == 1
    Path("how_to.py").write_text(BEFORE + deploying.replace(END, CLIENT + END))

    command = [sys.executable, "-m", "stoker.azure", "how_to.py"]
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(bring_image, plane, machine, namespace, layers, tmp_path / "workspace")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        built.result()

    assert ended.returncode == 0, ended.stdout + ended.stderr
    output = ended.stdout
    assert 'AKS service creation operation finished, operation "Succeeded"\nHealthy\n' in output
    labels = [int(label) for label in re.findall(r"^label: (\d)$", output, re.MULTILINE)]
    predictions = [int(digit) for digit in re.findall(r"^prediction: \[(\d)\]$", output, re.MULTILINE)]
    rows = np.random.RandomState(SEED).randint(0, len(logits) - 1, TIMES)
    assert predictions == logits[rows].argmax(axis=1).tolist(), output
    right = sum(label == digit for label, digit in zip(labels, predictions, strict=True))
    assert right >= 0.8 * TIMES
    print(f"\nseen: the how-to; {right} of {TIMES} predictions are the label")
    assert versions(cluster, namespace) == before
