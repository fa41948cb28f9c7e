"""Scripts that spark-submit runs on a head node: a real sshd, and a real cluster of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_server import wait_until
from tests.patience import PROGRAM_S
from tests.spark.cluster import SparkCluster, spark_home
from tests.spark.cluster import why_not as why_no_spark
from tests.spark.yarn import write_yarn
from tests.targets.sshd import Sshd, why_not
from tests.targets.test_conformance import processes_of
from tests.targets.test_local_runs import Project
from tests.tiny_packages import write_wheel

from stoker.cli import main
from stoker.settings.workspace import Workspace
from stoker_run.json_files import read_json_lines
from stoker_runs.launch.following import wait
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import Status

pytestmark = [
    pytest.mark.skipif(bool(why_no_spark()), reason=why_no_spark()),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

SCRIPT = """
import mylib
import tiny_one
from azureml.core import Run
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()


def value(number):
    import tiny_one
    return mylib.double(number), tiny_one.VERSION, tiny_one.__file__


found = session.sparkContext.parallelize(range(10), 2).map(value).collect()
Run.get_context().log("sum", sum(number for number, _, _ in found))
print("packages", {(version, path) for _, version, path in found})
with open("outputs/master", "w") as file:
    file.write(session.sparkContext.master)
"""
SLEEPER = """
import time
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
print("ready", flush=True)
open("ready", "w").close()
session.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(600))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "tiny-one", "1.5")
    return folder


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yarn")
    write_yarn(folder)
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, wheels: Path, yarn: Path) -> Iterator[Sshd]:
    """The head node of both clusters."""
    variables = {
        "UV_FIND_LINKS": str(wheels),
        "PIP_FIND_LINKS": str(wheels),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{yarn / 'bin'}:{os.environ['PATH']}",
    }
    server = Sshd(tmp_path_factory.mktemp("sshd"), variables=variables).start()
    yield server
    server.end()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    found = Project(tmp_path / "digits", Workspace(tmp_path / "workspace").create())
    (found.path / "mylib.py").write_text("def double(number):\n    return 2 * number\n")
    (found.path / "requirements.txt").write_text("--no-index\ntiny-one==1.5\n")
    return found


def attach(head: Sshd, **settings: str) -> None:
    """As somebody does who has a head node."""
    given = {
        "address": head.address,
        "port": str(head.port),
        "key_file": str(head.folder / "user"),
        "host_key": head.host_key(),
        "folder": str(head.remote),
        "python": str(head.settings()["python"]),
        **settings,
    }
    words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert main(["targets", "attach", "spark", "hdi", *words]) == 0


def attach_standalone(head: Sshd, cluster: SparkCluster) -> None:
    attach(head, master=cluster.master, spark_submit=str(spark_home() / "bin" / "spark-submit"))


def log(folder: RunFolder) -> str:
    return (folder.attempt(1) / "log_0.txt").read_text()


def check_results(folder: RunFolder, master: str) -> None:
    assert folder.state().status is Status.COMPLETED, (folder.state(), log(folder))
    lines = read_json_lines(folder.attempt(1) / "metrics.jsonl")
    assert [(one["k"], one["v"]) for one in lines] == [("sum", 90)]
    assert (folder.outputs / "master").read_text() == master


def test_a_script_runs_on_a_cluster(
    project: Project, head: Sshd, cluster: SparkCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its modules and packages are with the executors; log, metrics and outputs are in the run's folder."""
    attach_standalone(head, cluster)
    assert f"Spark 4.3.0, master {cluster.master}" in capsys.readouterr().out
    folder, _ = project.run_to_end(SCRIPT, environment_file="requirements.txt", target="hdi")
    check_results(folder, cluster.master)
    (packages,) = [line for line in log(folder).splitlines() if line.startswith("packages ")]
    assert "'1.5'" in packages
    assert str(cluster.folder) in packages


def test_a_failing_script_says_why(project: Project, head: Sshd, cluster: SparkCluster) -> None:
    """Its exception is the run's."""
    attach_standalone(head, cluster)
    _, state = project.run_to_end("raise ValueError('no data')\n", target="hdi")
    assert state.status is Status.FAILED
    assert state.error is not None
    assert state.error.message == "ValueError: no data"


def test_a_cancel_ends_the_application(project: Project, head: Sshd, cluster: SparkCluster) -> None:
    """The cluster has none then, and the head node no process."""
    attach_standalone(head, cluster)
    folder = project.submit(SLEEPER, target="hdi", grace_s=PROGRAM_S)
    project.wait_for_output(folder, "ready")
    wait_until(lambda: cluster.applications() == [f"{folder.id}-1"], "it is the only application")
    folder.request_cancel("enough", 1)
    assert wait(folder, project.workspace).status is Status.CANCELED
    wait_until(lambda: not cluster.applications(), "the application has ended", timeout_s=PROGRAM_S)
    assert processes_of(folder.id) == []


def test_python_runs_a_script_on_the_head_node(project: Project, head: Sshd, cluster: SparkCluster) -> None:
    """Where its framework is Python: it has no Spark then."""
    attach_standalone(head, cluster)
    script = "import os\nprint(sorted(name for name in os.environ if name.startswith('SPARK_')))\n"
    folder, state = project.run_to_end(script, target="hdi", framework="python")
    assert state.status is Status.COMPLETED
    assert log(folder) == "['SPARK_LOCAL_IP']\n"


def test_yarn_starts_the_driver_elsewhere(project: Project, head: Sshd, yarn: Path) -> None:
    """It leaves log, metrics and outputs, and what it has put into the cluster's file system is gone."""
    attach(head, deploy_mode="cluster")
    folder, _ = project.run_to_end(
        SCRIPT, environment_file="requirements.txt", target="hdi", variables={"GREETING": "it's me"}
    )
    check_results(folder, "local[1]")
    assert "packages {('1.5', " in log(folder)
    assert list((yarn / "files" / ".stoker").iterdir()) == []
    script = "import os, sys\nprint(os.environ['GREETING'])\nopen('logs/l', 'w').close()\nsys.exit(3)\n"
    folder, state = project.run_to_end(script, target="hdi", variables={"GREETING": "it's me"})
    assert (state.status, state.exit_status) == (Status.FAILED, 3)
    assert "it's me\n" in log(folder)
    assert (folder.logs / "l").exists()


def test_a_cancel_ends_the_application_of_yarn(project: Project, head: Sshd, yarn: Path) -> None:
    """By its name."""
    attach(head, deploy_mode="cluster")
    folder = project.submit(SLEEPER, target="hdi", grace_s=PROGRAM_S)
    container = yarn / "containers" / f"{folder.id}-1"
    wait_until((container / "work" / "ready").exists, "the driver runs", timeout_s=PROGRAM_S)
    folder.request_cancel("enough", 1)
    assert wait(folder, project.workspace).status is Status.CANCELED
    assert (container / "killed").exists()
