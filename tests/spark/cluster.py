"""A standalone cluster of Spark on this machine: a master, and a worker with two cores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.live_server import free_port, wait_until
from tests.observing import look_at_files
from tests.patience import PROGRAM_S

__all__ = ["SparkCluster", "spark_home", "started_cluster", "why_not"]


def why_not() -> str:
    """Why there can be no cluster on this machine; empty where there can."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: `make test-spark` brings it"
    if shutil.which("java") is None:
        return "Spark needs Java 17, and there is none: apt-get install openjdk-17-jre-headless"
    return ""


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@dataclass(frozen=True)
class SparkCluster:
    """A cluster that runs; `folder` has the files of its worker and of the applications there."""

    folder: Path
    port: int
    page_port: int

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """The master's report of its workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.page_port}/json/", timeout=10) as answer:
            return json.loads(answer.read())

    def applications(self) -> list[str]:
        """The names of the applications that run."""
        return [one["name"] for one in self.state()["activeapps"]]

    def written(self) -> str:
        """All that the cluster and its executors have written into files."""
        contents = look_at_files(
            self.folder, lambda path: "" if path.suffix == ".jar" else path.read_text(errors="replace")
        )
        return "".join(contents.values())


@contextmanager
def started_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Start a cluster, and end it with its executors."""
    cluster = SparkCluster(folder, free_port(), free_port())
    environ = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "applications"),
        # Executors of applications that name no Python have this one.
        "PYSPARK_PYTHON": sys.executable,
    }
    deploy = "org.apache.spark.deploy"
    at = ["--host", "127.0.0.1", "--port"]
    master = [f"{deploy}.master.Master", *at, str(cluster.port), "--webui-port", str(cluster.page_port)]
    worker = [f"{deploy}.worker.Worker", *at, str(free_port()), "--webui-port", str(free_port())]
    worker += ["--cores", "2", "--memory", "2g", cluster.master]
    processes: list[subprocess.Popen[bytes]] = []
    folder.mkdir(parents=True)
    try:
        for name, words in (("master", master), ("worker", worker)):
            with (folder / f"{name}.log").open("wb") as log:
                program = [str(spark_home() / "bin" / "spark-class"), *words]
                processes.append(subprocess.Popen(program, env=environ, stdout=log, stderr=log))
        wait_until(lambda: _is_ready(cluster), "the worker is at its master", timeout_s=PROGRAM_S)
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(PROGRAM_S)


def _is_ready(cluster: SparkCluster) -> bool:
    try:
        return any(one["state"] == "ALIVE" for one in cluster.state()["workers"])
    except (OSError, ValueError):  # its pages come one after the other
        return False
