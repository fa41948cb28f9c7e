"""The servers that `make compare` compares with Stoker: pinned packages, each at its best configuration.

Each has a virtual environment of its own. The services are in loadtests/peers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from stoker.errors import OperatorError
from stoker.system.wording import format_count
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE
from stoker_bench.contestants.servers import HOST, Launch, free_port
from stoker_bench.generators.scoring_request import DATA_LISTS, OPEN_INFERENCE, Dialect

SERVICES = Path(__file__).resolve().parents[2] / "peers"
"""The folder of the peers' services; it is in the repository, not in the wheel."""
AZUREML = "azureml-inference-server-http"
NUMPY = "numpy==2.4.6"
COMMON = (NUMPY, "onnxruntime==1.31.1")


class Site(Struct, frozen=True):
    """Where a peer runs.

    Attributes:
        environment: The peer's virtual environment.
        model: The ONNX file, named mlp.onnx, alone in its folder; or, for an entry script, the run folder.
        scratch: A folder for files that a peer insists on writing.
    """

    environment: Path
    model: Path
    scratch: Path

    @property
    def programs(self) -> Path:
        """The environment's executables."""
        return self.environment / "bin"


class Peer(Struct, frozen=True):
    """Another server.

    Attributes:
        package: Its name on the package index.
        requirements: Pinned; the first is the server itself.
        configuration: Its configuration, for the table.
        launch: Builds the command for a site.
        purpose: The purpose of its virtual environment, if it has several.
    """

    package: str
    requirements: tuple[str, ...]
    configuration: str
    launch: Callable[[Site], Launch]
    dialect: Dialect = DATA_LISTS
    purpose: str = ""

    @property
    def folder(self) -> str:
        """The name of its virtual environment."""
        return f"{self.package}-{self.purpose}" if self.purpose else self.package

    @property
    def version(self) -> str:
        """The pinned version."""
        return self.requirements[0].partition("==")[2]


def _launch(
    package: str, command: Sequence[str | Path], port: int, score_path: str, environment: dict[str, str]
) -> Launch:
    argv = tuple(str(part) for part in command)
    return Launch(package, argv, port, score_path=score_path, environment=environment)


def _mosec(site: Site) -> Launch:
    port = free_port()
    command: list[str | Path] = [site.programs / "python", SERVICES / "mosec_service.py"]
    command += ["--address", HOST, "--port", str(port)]
    tuning = {"WORKERS": "1", "MAX_BATCH": "32", "MAX_WAIT_MS": "1"}
    return _launch("mosec", command, port, "/inference", {"MODEL_PATH": str(site.model), **tuning})


def _litserve(site: Site) -> Launch:
    port = free_port()
    tuning = {"WORKERS": "1", "API_SERVERS": "2", "MAX_BATCH": "32", "BATCH_TIMEOUT_S": "0.005"}
    environment = {"MODEL_PATH": str(site.model), "PORT": str(port), **tuning}
    command = [site.programs / "python", SERVICES / "litserve_service.py"]
    return _launch("litserve", command, port, "/predict", environment)


def _mlserver(site: Site) -> Launch:
    port = free_port()
    environment = {
        "PYTHONPATH": str(SERVICES),
        "MODEL_PATH": str(site.model),
        "MLSERVER_METRICS_DIR": str(site.scratch),
        "MLSERVER_HTTP_PORT": str(port),
        "MLSERVER_GRPC_PORT": str(free_port()),
    }
    command: list[str | Path] = [site.programs / "mlserver", "start", SERVICES / "mlserver"]
    return _launch("mlserver", command, port, "/v2/models/mlp/infer", environment)


def _azureml(site: Site) -> Launch:
    return _azmlinfsrv(site, "azureml_score.py", site.model.parent, workers=2)


def _azmlinfsrv(site: Site, entry_script: str, model_folder: Path, workers: int) -> Launch:
    port = free_port()
    command: list[str | Path] = [site.programs / "azmlinfsrv", "--port", str(port)]
    command += ["--worker_count", str(workers)]
    command += ["--entry_script", SERVICES / entry_script, "--model_dir", model_folder]
    environment = {"AZUREML_MODEL_DIR": str(model_folder), "AML_APP_ROOT": str(site.scratch)}
    return _launch(AZUREML, command, port, "/score", environment)


def graph_script_launch(site: Site, script: Path, workers: int) -> Launch:
    """Start Azure's server for a TensorFlow 1 entry script; `site.model` is the run folder."""
    launch = _azmlinfsrv(site, "azureml_graph.py", site.model, workers)
    return replace(
        launch,
        name=f"{AZUREML}, {format_count(workers, 'worker')}",
        environment={
            **launch.environment,
            "ENTRY_SCRIPT": str(script.resolve()),
            "CUDA_VISIBLE_DEVICES": "-1",
        },
    )


def _fastapi(site: Site) -> Launch:
    port = free_port()
    command: list[str | Path] = [site.programs / "python", "-m", "uvicorn", "fastapi_service:app"]
    command += ["--app-dir", SERVICES, "--host", HOST, "--port", str(port), "--workers", "2"]
    command += ["--http", "httptools", "--loop", "uvloop", "--no-access-log", "--log-level", "warning"]
    return _launch("fastapi", command, port, "/score", {"MODEL_PATH": str(site.model)})


PEERS = (
    Peer("mosec", ("mosec==0.9.8", "orjson==3.13.0", *COMMON), "orjson by hand, batches to 32, 1 ms", _mosec),
    Peer(
        "litserve",
        ("litserve==0.2.19", "uvloop==0.23.0", "httptools==0.9.0", *COMMON),
        "2 API servers, 1 worker, batches to 32, 5 ms",
        _litserve,
    ),
    Peer("mlserver", ("mlserver==1.7.1", *COMMON), "in one process, no batching", _mlserver, OPEN_INFERENCE),
    Peer(
        AZUREML,
        (f"{AZUREML}==1.5.1", "orjson==3.13.0", *COMMON),
        "orjson by hand, 2 workers",
        _azureml,
    ),
    Peer(
        "fastapi",
        ("fastapi==0.165.0", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0", *COMMON),
        "pydantic body, 2 uvicorn workers",
        _fastapi,
    ),
)
"""Every peer that `make compare` knows."""

GRAPH_SCRIPT_PEER = Peer(
    AZUREML,
    (f"{AZUREML}==1.5.1", NUMPY, "tensorflow==2.21.0"),
    "TensorFlow 1 entry script, 1 worker",
    lambda site: graph_script_launch(site, GRAPH_SCORE, workers=1),
    purpose="tensorflow",
)
"""The server that the entry scripts come from, with the TensorFlow that they need."""


def build_environment(peer: Peer, environments: Path) -> Path:
    """Return the peer's virtual environment, built unless it has exactly its requirements; raises OperatorError."""
    environment = environments / peer.folder
    stamp = environment / "requirements.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return environment
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise OperatorError("uv is needed to build the peers' environments; `make install` brings it")
    print(f"compare: building the environment of {peer.folder} …", file=sys.stderr, flush=True)
    python = environment / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *peer.requirements],
    ):
        built = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if built.returncode:
            raise OperatorError(f"{' '.join(command[:3])} failed for {peer.folder}: {built.stderr.strip()}")
    stamp.write_text(wanted)
    return environment
