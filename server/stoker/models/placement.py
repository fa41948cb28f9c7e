"""How many device processes serve a model, and on which devices they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.system.wording import format_count


@dataclass(frozen=True, slots=True)
class Placement:
    """The replicas of a model: each one is served by a device process of its own.

    Attributes:
        shortfall: Why there are fewer than were asked for, for the operator; empty if there are not.
    """

    devices: tuple[str, ...]
    shortfall: str = ""

    @property
    def cpu_replicas(self) -> int:
        """How many of them share the cores; `auto` counts, for it may mean the CPU."""
        return sum(map(_shares_cores, self.devices))


def place(devices: Sequence[str], replicas: int, cores: int) -> Placement:
    """Spread the replicas of a model round robin over its devices.

    On the CPU at most one for each core runs: more would only take turns. A GPU may have any number, for a
    second one can prepare a batch while the first one computes.

    Args:
        devices: Its devices as settings name them: `auto`, or any of `cpu`, `cuda:N` and UUIDs.
        replicas: How many were asked for; 0 is one for each device.
    """
    wanted = [devices[number % len(devices)] for number in range(replicas or len(devices))]
    kept: list[str] = []
    for device in wanted:
        if not _shares_cores(device) or sum(map(_shares_cores, kept)) < cores:
            kept.append(device)
    if len(kept) == len(wanted):
        return Placement(tuple(kept))
    where = "with device auto" if "auto" in kept else "on the CPU"
    more = "; name a GPU, such as cuda:0, to have more on it" if "auto" in kept else ""
    return Placement(
        tuple(kept),
        f"{format_count(len(wanted), 'replica')} were asked for, {len(kept)} {'runs' if len(kept) == 1 else 'run'}: "
        f"{where} there is at most one for each core, and this server may use {cores}{more}",
    )


def _shares_cores(device: str) -> bool:
    return device in ("cpu", "auto")
