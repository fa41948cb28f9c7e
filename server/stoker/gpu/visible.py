"""Which GPUs CUDA_VISIBLE_DEVICES leaves to this server, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.gpu.facts import Gpu, MigDevice

__all__ = ["Visible", "visible_devices"]


@dataclass(frozen=True, slots=True)
class Visible:
    """A device that CUDA_VISIBLE_DEVICES leaves to this server.

    Attributes:
        gpu: The GPU.
        part: The MIG device of it, where that alone was named.
    """

    gpu: Gpu
    part: MigDevice | None = None


def visible_devices(found: Sequence[Gpu], environ: Mapping[str, str]) -> list[Visible]:
    """What CUDA_VISIBLE_DEVICES leaves of the GPUs, in its order; all where it is not set.

    As CUDA reads it: numbers in the order of the PCI bus, UUIDs of GPUs or their beginnings, UUIDs of MIG devices;
    the first entry that is none of these ends the list.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [Visible(gpu) for gpu in found]
    visible: list[Visible] = []
    for entry in named.split(","):
        device = _named(entry.strip(), found)
        if device is None:
            break
        if device not in visible:
            visible.append(device)
    return visible


def _named(entry: str, found: Sequence[Gpu]) -> Visible | None:
    if entry.startswith("MIG-"):
        parts = [Visible(gpu, part) for gpu in found for part in gpu.mig_devices]
        return next((visible for visible in parts if visible.part and visible.part.uuid == entry), None)
    if entry.startswith("GPU-"):
        begun = [gpu for gpu in found if gpu.uuid.startswith(entry)]
        return Visible(begun[0]) if len(begun) == 1 else None
    return next((Visible(gpu) for gpu in found if entry.isdecimal() and gpu.index == int(entry)), None)
