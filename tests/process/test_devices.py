"""A server on a machine whose NVML is made up: from the name of a device to its process and its metrics."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container
from functools import partial
from pathlib import Path

import pytest
from tests.live_server import LiveServer, wait_until

UUID = "GPU-12345678-0000-4000-8000-123456789abc"
NVML = f"""
from types import SimpleNamespace

class NVMLError(Exception):
    value = 0

NVML_ERROR_UNINITIALIZED = NVML_ERROR_DRIVER_NOT_LOADED = NVML_ERROR_GPU_IS_LOST = 1
NVML_ERROR_RESET_REQUIRED = NVML_ERROR_UNKNOWN = 1
nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetUUID = lambda handle: "{UUID}" if handle == 1 else "GPU-another"
nvmlDeviceGetName = lambda handle: "NVIDIA H200"
nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=140 << 30, used=40 << 30, free=100 << 30)
nvmlDeviceGetPowerUsage = lambda handle: 412_500
"""
SCRIPT = """
import os

def init():
    pass

def run(raw_data):
    return [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "STOKER_DEVICE")]
"""


def test_a_script_may_see_several_gpus(tmp_path: Path) -> None:
    """Those that are joined by a plus, in one process; both are among the metrics."""
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(NVML)
    script = tmp_path / "score.py"
    script.write_text(SCRIPT)
    scratch = tmp_path / "server"
    scratch.mkdir()
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path / "nvml"), os.environ.get("PYTHONPATH")])),
        # Runtimes that other tests have loaded in this process may have hidden them all.
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    options = ("--device", "cuda:1+cuda:0", "--frontends", "1")
    with LiveServer(scratch, script, *options, env=variables) as server:
        assert json.loads(server.score([0.0]).body) == [f"{UUID},GPU-another", "PCI_BUS_ID", "cuda:0"]
        assert "  device   cuda:1+cuda:0: NVIDIA H200, 140 GiB + NVIDIA H200, 140 GiB" in server.output()

        def busy_devices() -> list[str]:
            exposed = server.get("/metrics").body.decode()
            return re.findall(r'stoker_device_busy_seconds_total{device="(.*?)"', exposed)

        # A batch is counted when its answers have left.
        assert {*wait_until(busy_devices, "the batch is counted")} == {"cuda:0", "cuda:1"}


def test_a_gpu_is_the_only_one_of_its_process_and_is_measured(tmp_path: Path) -> None:
    """The operator says cuda:0 of what CUDA_VISIBLE_DEVICES leaves; the script's process is given the UUID."""
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(NVML)
    script = tmp_path / "score.py"
    script.write_text(SCRIPT)
    scratch = tmp_path / "server"
    scratch.mkdir()
    search = os.pathsep.join(filter(None, [str(tmp_path / "nvml"), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": "1"}
    with LiveServer(scratch, script, "--device", "cuda:0", "--frontends", "1", env=variables) as server:
        assert json.loads(server.score([0.0]).body) == [UUID, "PCI_BUS_ID", "cuda:0"]
        assert "  device   cuda:0: NVIDIA H200, 140 GiB (as asked for)" in server.output()

        def exposed() -> set[str]:
            return set(server.get("/metrics").body.decode().splitlines())

        wait_until(lambda: f'nv_gpu_power_usage{{gpu_uuid="{UUID}"}} 412.5' in exposed(), "the GPUs are read")
        assert {
            f'stoker_gpu_power_watts{{gpu="1",uuid="{UUID}"}} 412.5',
            'stoker_gpu_power_watts{gpu="0",uuid="GPU-another"} 412.5',
        } <= exposed()
        assert not any("temperature_celsius{" in line for line in exposed())


HUNGRY = """
import os
from pathlib import Path

def init():
    Path({folder!r}, str(os.getpid())).write_text("{mb}")

def run(raw_data):
    return [{mb}]
"""
COUNTED = """
import os
from pathlib import Path

def used_memory():
    alive = [one for one in Path({folder!r}).iterdir() if Path("/proc", one.name).exists()]
    return {{int(one.name): int(one.read_text() or 0) << 20 for one in alive}}

def nvmlDeviceGetComputeRunningProcesses(handle):
    processes = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in used_memory().items()]
    return processes if {lists_processes} else []

def nvmlDeviceGetMemoryInfo(handle):
    used = (300 << 20) + sum(used_memory().values())
    return SimpleNamespace(total=2 << 30, used=used, free=(2 << 30) - used)

nvmlDeviceGetHandleByUUID = lambda uuid: 1
"""


@pytest.mark.long
@pytest.mark.parametrize("lists_processes", [True, False])
def test_models_share_the_memory_of_a_gpu(tmp_path: Path, lists_processes: bool) -> None:
    """Whether the driver lists processes or not, a model is unloaded when the GPU has no room for the next one."""
    for folder in ("nvml", "held", "server"):
        (tmp_path / folder).mkdir()
    counted = COUNTED.format(folder=str(tmp_path / "held"), lists_processes=lists_processes)
    (tmp_path / "nvml" / "pynvml.py").write_text(NVML + counted)
    models = []
    for name, mb in (("a", 400), ("b", 350), ("c", 300)):
        script = tmp_path / f"{name}.py"
        script.write_text(HUNGRY.format(folder=str(tmp_path / "held"), mb=mb))
        models.append({"path": str(script)})
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(
        json.dumps({"models": models, "device": "cuda:1", "memory_mb": "auto", "frontends": 1})
    )
    search = os.pathsep.join(filter(None, [str(tmp_path / "nvml"), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": "0,1"}
    with LiveServer(tmp_path / "server", "--config", deployment, env=variables) as server:

        def shown_mb(name: str) -> float:
            lines = server.get("/metrics").body.decode().splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} ")) / 2**20

        def shows_mb(used_mb: Container[float]) -> bool:
            return shown_mb("stoker_model_memory_bytes") in used_mb

        # A model that was never loaded is expected to take a context of 512 MiB: a or b leaves for c.
        for name, mb, used_mb in (("a", 400, {400}), ("b", 350, {750}), ("c", 300, {650, 700})):
            answer = server.score([0.0], path=f"/api/v1/service/{name}/score")
            assert json.loads(answer.body) == [mb]
            # The memory of a load is read when its process serves already.
            wait_until(partial(shows_mb, used_mb), "its memory is known")
        assert shown_mb("stoker_model_memory_budget_bytes") == 2048 - 300 - 512
        assert (
            "models may use 1236 MiB of cuda:1: 1748 MiB were free, 512 MiB stay in reserve"
            in server.output()
        )
        assert "loaded c version 1 on demand" in server.output()
