"""Names, facts and metrics of a real NVIDIA GPU; skipped where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.live_server import LiveServer, wait_until
from tests.tables import write_table

from stoker.deployment import Device
from stoker.gpu.nvml import GpuReader, gpus
from stoker.gpu.survey import find_devices

pytestmark = [pytest.mark.gpu]

SCRIPT = """
import os

def init():
    pass

def run(raw_data):
    return [os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"], os.environ["STOKER_DEVICE"]]
"""


def test_the_driver_and_nvidia_smi_agree(first_gpu: Device) -> None:
    """Order, UUIDs, bus and compute capability are equal."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip(reason="nvidia-smi is not installed")
    query = "--query-gpu=index,uuid,name,pci.bus_id,compute_cap"
    shown = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout
    found = [(str(gpu.index), gpu.uuid, gpu.name, gpu.pci_bus, gpu.compute_capability) for gpu in gpus()]
    assert [tuple(line.split(", ")) for line in shown.splitlines()] == found


def test_a_gpu_is_read(first_gpu: Device) -> None:
    """In two readings memory adds up, and energy only grows."""
    reader = GpuReader()
    before, after = (
        {reading.uuid: reading for reading in readings} for readings in (reader.read(), reader.read())
    )
    for uuid, reading in after.items():
        if reading.memory_total_bytes is not None:
            assert reading.memory_used_bytes is not None
            assert 0 < reading.memory_used_bytes <= reading.memory_total_bytes
        if reading.energy_mj is not None:
            assert reading.energy_mj >= (before[uuid].energy_mj or 0) > 0
        assert reading.utilization_percent is None or 0 <= reading.utilization_percent <= 100


def test_a_server_keeps_to_the_gpu_of_a_uuid(first_gpu: Device, tmp_path: Path) -> None:
    """A script sees only that GPU, as the first; its metrics have both names."""
    script = tmp_path / "score.py"
    script.write_text(SCRIPT)
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, script, "--device", first_gpu.uuid) as server:
        answer = server.score([0.0])
        assert json.loads(answer.body) == [first_gpu.uuid, "PCI_BUS_ID", "cuda:0"]
        found = next(one.device for one in find_devices()[1] if one.device.uuid == first_gpu.uuid)
        aliased = f'nv_gpu_memory_total_bytes{{gpu_uuid="{first_gpu.uuid}"}} '
        line = wait_until(
            lambda: next(
                (line for line in server.get("/metrics").body.decode().splitlines() if aliased in line), ""
            ),
            "the GPU has been read",
        )
        assert float(line.rpartition(" ")[2]) == found.memory_total_bytes


def test_models_leave_the_memory_of_a_gpu(first_gpu: Device, tmp_path: Path) -> None:
    """The GPU shows the memory of a load; a budget without room for two models loads one at a time."""
    for number, name in enumerate("ab"):
        write_table(tmp_path / "models" / name / "1" / "model.onnx", 256 << 20, seed=number)

    def used_mb(server: LiveServer, name: str) -> float:
        loads = server.output().count(" on demand in ")
        assert server.score([0.0], path=f"/api/v1/service/{name}/score").status == 200
        # The memory of a load is read when its process serves already.
        wait_until(lambda: server.output().count(" on demand in ") > loads, "its memory is known")
        lines = server.get("/metrics").body.decode().splitlines()
        shown = next(line for line in lines if line.startswith("stoker_model_memory_bytes "))
        return float(shown.split()[1]) / 2**20

    def serve(scratch: str, memory_mb: str) -> LiveServer:
        (tmp_path / scratch).mkdir()
        options = ("--device", first_gpu.uuid, "--frontends", "1", "--memory-mb", memory_mb)
        return LiveServer(tmp_path / scratch, tmp_path / "models", *options, workspace=tmp_path / "workspace")

    with serve("roomy", "auto") as server:
        one, two = (used_mb(server, name) for name in "ab")
        assert one >= 250
        assert two - one >= 250
        assert "MB of GPU memory" in server.output()
    # Both footprints are known now.
    with serve("tight", str(round(one) + 200)) as server:
        for name in "aba":
            assert used_mb(server, name) == pytest.approx(one, rel=0.2)
        assert server.metric("stoker_evictions_total", reason="room") >= 2
