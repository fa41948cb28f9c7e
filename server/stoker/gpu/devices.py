"""Devices by name: whether each can be used, and the confinement of a process to one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from stoker.deployment import Device
from stoker.gpu import probes
from stoker.gpu.facts import Driver, Gpu, MigDevice, Visible, visible_devices
from stoker.gpu.nvml import describe_driver, gpus
from stoker.gpu.probes import RUNTIMES, probe
from stoker.gpu.selection import choose_device, cpu_device, mig_hint
from stoker.system.resources import main_memory


def enter_device(setting: str, frameworks: Collection[str]) -> tuple[Device, str]:
    """Choose the device of this process and confine the process to it, as `choose_device` and `confine` do.

    No CUDA library may have been loaded.
    """

    def problem(uuid: str, framework: str) -> str | None:
        confine(uuid, os.environ)
        return probe(framework)

    device, reason = choose_device(setting, frameworks, problem, dict(os.environ))
    confine(device.visible, os.environ)
    return device, reason


def confine(uuid: str, environ: MutableMapping[str, str]) -> None:
    """Let CUDA see nothing but the GPU with this UUID, or no GPU if it is empty.

    So the GPU is the ordinal 0 of each framework and script, and none takes memory of another one. CUDA looks at the
    variables once, when it is loaded.

    Args:
        uuid: `Device.visible`: of several GPUs the UUIDs, with commas between them.
        environ: The variables of this process, or of one that is to be started.
    """
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environ["CUDA_VISIBLE_DEVICES"] = uuid or "-1"


_PROBE_TIMEOUT_S: Final = 180.0
_TENSORFLOW_LOG: Final = {
    # TensorFlow counts its GPUs without a word of what it misses, unless its loader of libraries is asked to talk.
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_CPP_VMODULE": "dso_loader=1",
}
_MISSING_LIBRARY: Final = re.compile(r"Could not load dynamic library '([^']+)'")


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device of this machine; what its driver does not say is None.

    Attributes:
        setting: What the setting `device` calls it; empty if it cannot be used as it is.
        kind: `cpu`, `gpu`, or `mig` for a part of the GPU before it.
        name: Product name.
        uuid: Its UUID; empty for the CPU.
        compute_capability: For instance `9.0`.
        pci_bus: PCI bus id.
        memory_total_bytes: Size of its memory.
        memory_free_bytes: Memory that can be had.
        note: Why it cannot be used as it is; empty if it can.
    """

    setting: str
    kind: Literal["cpu", "gpu", "mig"]
    name: str
    uuid: str = ""
    compute_capability: str | None = None
    pci_bus: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """All devices of this machine.

    Attributes:
        driver: The NVIDIA driver; None if there is none.
        no_gpu: Why there is no GPU; empty if there is one.
        devices: The GPUs, each followed by its MIG devices, and the CPU.
    """

    driver: Driver | None
    no_gpu: str
    devices: tuple[FoundDevice, ...]


def find_devices(environ: Mapping[str, str] = os.environ) -> Survey:
    """Look for the devices, and ask no runtime.

    Args:
        environ: The environment, whose CUDA_VISIBLE_DEVICES is heeded.
    """
    try:
        driver, found = describe_driver(), gpus()
    except OSError as error:
        return Survey(None, str(error), (_cpu(),))
    no_gpu = "" if found else "the NVIDIA driver sees no GPU"
    return Survey(driver, no_gpu, (*_found_gpus(found, environ), _cpu()))


def probe_in_child(uuid: str, runtime: str) -> str | None:
    """Why a runtime cannot use a GPU, or None; found out in a process of its own, which may crash.

    Args:
        uuid: UUID of the GPU or MIG device.
        runtime: One of `probes.RUNTIMES`; others have no problem.
    """
    if runtime not in RUNTIMES:
        return None
    environ = {**os.environ, **_TENSORFLOW_LOG}
    confine(uuid, environ)
    command = [sys.executable, "-P", "-m", probes.__name__, runtime]
    try:
        child = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{RUNTIMES[runtime]} did not answer within {_PROBE_TIMEOUT_S:g} s"
    last_line = (child.stdout.strip().splitlines() or [""])[-1]
    try:
        problem: str | None = json.loads(last_line)["problem"]
    except (ValueError, KeyError, TypeError):
        reason = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"{RUNTIMES[runtime]} {_ended(child.returncode)}: {reason}"
    missing = dict.fromkeys(_MISSING_LIBRARY.findall(child.stderr))
    if problem is not None and missing and runtime == "tensorflow":
        return f"{problem}; it did not find {', '.join(missing)}"
    return problem


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _cpu() -> FoundDevice:
    total, available = main_memory()
    return FoundDevice(
        "cpu",
        "cpu",
        cpu_device().description,
        memory_total_bytes=total,
        memory_free_bytes=available,
    )


def _found_gpus(found: Sequence[Gpu], environ: Mapping[str, str]) -> Iterator[FoundDevice]:
    visible = visible_devices(found, environ)
    named = f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')} hides it"
    for gpu in found:
        whole = Visible(gpu) in visible
        note = mig_hint(gpu) if gpu.mig_mode else "" if whole else named
        yield FoundDevice(
            "" if note else f"cuda:{visible.index(Visible(gpu))}",
            "gpu",
            gpu.name,
            gpu.uuid,
            gpu.compute_capability,
            gpu.pci_bus,
            gpu.memory_total_bytes,
            gpu.memory_free_bytes,
            note,
        )
        for part in gpu.mig_devices:
            yield _mig(gpu, part, "" if whole or Visible(gpu, part) in visible else named)


def _mig(gpu: Gpu, part: MigDevice, note: str) -> FoundDevice:
    return FoundDevice(
        "" if note else part.uuid,
        "mig",
        part.name,
        part.uuid,
        gpu.compute_capability,
        gpu.pci_bus,
        part.memory_total_bytes,
        part.memory_free_bytes,
        note,
    )
