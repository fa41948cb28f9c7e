"""A server on a machine whose NVML is made up: from the name of a device to its process and its metrics."""

from __future__ import annotations

import json
import os
from pathlib import Path

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
        exposed = server.get("/metrics").body.decode()
        assert all(f'stoker_device_busy_seconds_total{{device="cuda:{n}"' in exposed for n in (0, 1))


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
