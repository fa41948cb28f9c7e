"""The GPUs and MIG devices of this machine, with their names in the setting `device`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

from stoker.gpu.facts import Driver, Gpu, MigDevice, Visible, visible_devices
from stoker.gpu.nvml import describe_driver, gpus
from stoker.gpu.selection import mig_hint


class FoundDevice(Struct, frozen=True):
    """A GPU, or a MIG device of the GPU before it.

    Attributes:
        setting: Its name in the setting `device`; empty if it cannot be used.
        note: Why it cannot be used; empty if it can.
    """

    setting: str
    device: Gpu | MigDevice
    note: str = ""


def find_devices(environ: Mapping[str, str] = os.environ) -> tuple[Driver | None, list[FoundDevice]]:
    """Find the NVIDIA driver and the devices that it sees, without a runtime; nothing where there is no driver.

    Args:
        environ: The environment; its CUDA_VISIBLE_DEVICES applies.
    """
    try:
        driver, found = describe_driver(), gpus()
    except OSError:
        return None, []
    visible = visible_devices(found, environ)
    hidden = f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')} hides it"
    devices = []
    for gpu in found:
        whole = Visible(gpu)
        note = mig_hint(gpu) if gpu.mig_mode else "" if whole in visible else hidden
        devices.append(FoundDevice("" if note else f"cuda:{visible.index(whole)}", gpu, note))
        for part in gpu.mig_devices:
            is_visible = whole in visible or Visible(gpu, part) in visible
            devices.append(FoundDevice(part.uuid if is_visible else "", part, "" if is_visible else hidden))
    return driver, devices
