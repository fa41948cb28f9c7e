"""Servers whose models run in environments of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.live_server import PRIMARY, SECONDARY, LiveServer, run_stoker, wait_until
from tests.process.conftest import Serve
from tests.tiny_models import write_script
from tests.tiny_packages import write_wheel

pytestmark = pytest.mark.long

TELLS = """
import json
import os
import sys
import tiny_package

def init():
    print("serving with", tiny_package.VERSION)

def run(raw_data):
    if json.loads(raw_data).get("tell") == "die":
        os._exit(7)
    return [tiny_package.VERSION, os.path.dirname(tiny_package.__file__), sys.executable]
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of one package."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        write_wheel(folder, "tiny-package", version)
    return folder


def write_model(folder: Path, wheels: Path, version: str) -> Path:
    """A script that tells its environment, with a file that asks for one version of the package."""
    write_script(folder, TELLS)
    (folder / "conda_dependencies.yml").write_text(
        "name: project_environment\n"
        "channels: [conda-forge]\n"
        "dependencies:\n"
        "- python>=3.8\n"
        "- cudatoolkit=11.3\n"
        "- pip:\n"
        "  - azureml-defaults>=1.0.45\n"
        "  - --no-index\n"
        f"  - --find-links {wheels}\n"
        f"  - tiny-package={version}\n"
    )
    return folder / "score.py"


def describe_environment(server: LiveServer, name: str) -> list[str]:
    """Ask a model to describe its environment."""
    with server.connect() as connection:
        body = b'{"data": []}'
        head = (
            f"POST /api/v1/service/{name}/score HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {PRIMARY}\r\n"
        )
        answer = connection.ask(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    assert answer.status == 200, answer.body
    content: list[str] = answer.json()
    return content


def test_models_with_conflicting_packages_are_served_side_by_side(
    serve: Serve, doubler: Path, tmp_path: Path, wheels: Path
) -> None:
    """Each model runs with its own version, from an environment that is built once; a restart finds it again."""
    config = tmp_path / "deployment.yaml"
    first = write_model(tmp_path / "first", wheels, "1.0")
    second = write_model(tmp_path / "second", wheels, "2.0")
    config.write_text(
        "models:\n"
        f"- {{path: {first}, environment_managed: system}}\n"
        f"- {{path: {second}, environment_managed: system}}\n"
        f"- {{path: {doubler}, environment: first/conda_dependencies.yml, environment_managed: system}}\n"
    )
    workspace = tmp_path / "workspace"
    doctor = run_stoker(
        "doctor", "--config", config, "--workspace", workspace, "--port", "0", "--build", "--json"
    )
    report = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    server = serve("--config", config, "--frontends", "1", workspace=workspace)
    environments = (workspace / "environments").resolve()
    one, two = describe_environment(server, "first"), describe_environment(server, "second")
    doubled = server.score([1, 2, 3, 4], path="/api/v1/service/doubler/score")

    assert doctor.returncode == 0, doctor.stdout
    assert "built in" in report["packages of first"]["text"]
    assert doctor.stderr.count("building an environment for") == 2, "the third model shares that of the first"
    assert (one[0], two[0]) == ("1.0", "2.0")
    assert all(Path(path).resolve().is_relative_to(environments) for path in (one[1], two[1]))
    assert one[2] != two[2]
    assert all(Path(path).is_relative_to(environments) for path in (one[2], two[2]))
    assert doubled.json() == [[2, 4, 6, 8]]
    assert len(server.device_pids()) == 3, "each has a process of its own"
    output = server.output()
    assert output.count("conda_dependencies.yml (system-managed): environment ") == 3
    assert output.count("1 package of its own, built before") == 3
    assert "building an environment" not in output
    assert "note     cudatoolkit=11.3: CUDA libraries come from the machine" in output

    with server.connect() as connection:
        body = b'{"tell": "die"}'
        head = (
            f"POST /api/v1/service/first/score HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {PRIMARY}\r\n"
        )
        assert connection.ask(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body).status == 503
    wait_until(lambda: server.ready, "the device process is back")
    assert describe_environment(server, "first") == one


def test_packages_missing_from_a_user_managed_model_are_listed(serve: Serve, tmp_path: Path) -> None:
    """The server starts, and lists the counts and each difference."""
    script = write_script(tmp_path / "plain", "def init(): ...\ndef run(raw_data):\n    return 1\n")
    script.with_name("myenv.yml").write_text(
        "dependencies:\n- python=3.6.2\n- numpy=1.19\n- pip:\n  - no-such-package\n  - tensorflow-gpu=1.12\n"
    )
    server = serve(script, "--frontends", "1")

    lines = [line.strip() for line in server.output().splitlines()]
    first = lines.index(
        "packages myenv.yml (user-managed): 3 packages asked for, 1 missing, 1 in another version"
    )
    assert re.fullmatch(r"python   3\.6\.2 is asked for, this is 3\.\d+\.\d+", lines[first + 1])
    assert re.fullmatch(
        r"version  numpy==1\.19\.\*: numpy \S+ is installed \(myenv\.yml, line 3\)", lines[first + 2]
    )
    assert lines[first + 3] == "missing  no-such-package (myenv.yml, line 5)"
    assert lines[first + 4].startswith(
        "note     tensorflow-gpu=1.12: TensorFlow 1 has no release for this Python"
    )


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("conda.yaml", "dependencies:\n- numpy: 1\n", "conda.yaml, line 2: a dependency must be one text"),
        ("requirements.txt", "--no-index\nno-such-package\n", "no-such-package"),
    ],
    ids=["unreadable", "cannot be made"],
)
def test_an_environment_that_cannot_be_made_stops_the_start(
    tmp_path: Path, file: str, text: str, reason: str
) -> None:
    """Stoker prints the fault and exits with code 2 before any process is started."""
    script = write_script(tmp_path / "model", "def init(): ...\ndef run(raw_data): ...\n")
    script.with_name(file).write_text(text)
    done = run_stoker(
        *("serve", script, "--system-managed", "--port", "0", "--workspace", tmp_path / "workspace"),
        env={"STOKER_PRIMARY_KEY": PRIMARY, "STOKER_SECONDARY_KEY": SECONDARY},
    )

    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
