"""The confinement of a process to its device."""

from __future__ import annotations

import os
from collections.abc import Collection, MutableMapping

from stoker.deployment import Device
from stoker.gpu.probes import probe
from stoker.gpu.selection import choose_device


def enter_device(setting: str, frameworks: Collection[str]) -> tuple[Device, str]:
    """Choose the device of this process and confine the process to it; see `choose_device` and `confine`.

    Call it before any CUDA library is loaded.
    """

    def find_problem(uuid: str, framework: str) -> str | None:
        confine(uuid, os.environ)
        return probe(framework)

    device, reason = choose_device(setting, frameworks, find_problem, dict(os.environ))
    confine(device.visible, os.environ)
    return device, reason


def confine(uuid: str, environ: MutableMapping[str, str]) -> None:
    """Let CUDA see only the GPU with this UUID, or no GPU if it is empty.

    The GPU is then ordinal 0 in each framework and script, and none takes memory of another GPU. CUDA reads the
    variables once, when it is loaded.

    Args:
        uuid: `Device.visible`: a UUID, or several with commas between them.
        environ: The variables of this process, or of a process to start.
    """
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environ["CUDA_VISIBLE_DEVICES"] = uuid or "-1"
