"""A container started as KServe would start it, from the runtime that `stoker kubernetes kserve` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.http.raw_http import request
from tests.image.conftest import opened
from tests.image.containers import Container
from tests.live_server import wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import write_doubler, write_script

from stoker_cluster.objects.kserve import kserve

ROWS = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.0, -1.0, 7.0]]
DOUBLED = [[2.0, 4.0, 6.0, 8.0], [1.0, 0.0, -2.0, 14.0]]
SCRIPT = "import json\ndef init():\n    pass\ndef run(raw_data):\n    return json.loads(raw_data)['data']\n"


@pytest.fixture
def served(gpu_image: str, tmp_path: Path, start: Callable[..., Container]) -> Callable[..., Container]:
    """Starts a variant of the runtime with the storage initializer's files in /mnt/models."""

    def started(**variant: Any) -> Container:
        folder = tmp_path / "mnt-models"
        if variant.get("scripts"):
            write_script(folder, SCRIPT)
        else:
            write_doubler(folder / "model.onnx")
        opened(folder)
        spec = kserve(gpu_image, **variant)[0]["spec"]
        (container,) = spec["containers"]
        arguments = [text.replace("{{.Name}}", "digits") for text in container["args"]]
        ports = {8080, *(port["containerPort"] for port in container["ports"])}
        options = [*_options(spec, container), f"--volume={folder}:/mnt/models:ro"]
        return start(gpu_image, *arguments, options=options, ports=sorted(ports))

    return started


def _options(spec: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    """Podman's options for a container as the kubelet would run it."""
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    yield "--read-only"
    assert not rights["allowPrivilegeEscalation"]
    yield "--security-opt=no-new-privileges"
    yield from (f"--cap-drop={name}" for name in rights["capabilities"]["drop"])
    yield f"--user={rights['runAsUser']}:{rights['runAsGroup']}"
    yield from (f"--env={one['name']}={one['value']}" for one in container["env"])
    assert all(volume["emptyDir"].keys() <= {"sizeLimit"} for volume in spec["volumes"])
    named = {volume["name"] for volume in spec["volumes"]}
    for mount in container["volumeMounts"]:
        assert mount["name"] in named
        # Folders that the kubelet makes are everybody's.
        yield f"--tmpfs={mount['mountPath']}:mode=0777"


def post(container: Container, path: str, content: Any) -> Any:
    """Post JSON without a key; returns the answer."""
    headers = [("Content-Type", "application/json")]
    answer = container.ask(request("POST", path, headers, json.dumps(content).encode()))
    assert answer.status == 200, answer.body
    return answer.json()


def test_http_of_both_versions(served: Callable[..., Container]) -> None:
    """The InferenceService's name is the model's; v1 and v2 score, and metrics and probes answer."""
    container = served().until_ready()

    assert post(container, "/v1/models/digits:predict", {"instances": ROWS}) == {"predictions": DOUBLED}
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS}
    (output,) = post(container, "/v2/models/digits/infer", {"inputs": [tensor]})["outputs"]
    assert (output["name"], output["shape"]) == ("y", [2, 4])
    assert np.reshape(output["data"], (2, 4)).tolist() == DOUBLED
    assert container.get("/v2/health/live").status == 200
    assert 'stoker_requests_total{model="digits"' in container.get("/metrics").body.decode()
    assert container.stop() == 0


def test_grpc(served: Callable[..., Container]) -> None:
    """The variant for gRPC answers on the port that is called h2c."""
    container = served(protocol="grpc").until_ready()
    tensor = triton.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.array(ROWS, np.float32))

    with triton.InferenceServerClient(f"127.0.0.1:{container.ports[9000]}") as client:
        wait_until(lambda: client.is_model_ready("digits"), "the model is ready by gRPC", timeout_s=PROGRAM_S)
        assert client.infer("digits", [tensor]).as_numpy("y").tolist() == DOUBLED
    assert container.stop() == 0


def test_scripts(served: Callable[..., Container]) -> None:
    """The variant for scripts runs `score.py` beside its model."""
    container = served(scripts=True).until_ready()

    assert post(container, "/score", {"data": ROWS}) == ROWS
