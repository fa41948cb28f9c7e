"""The device processes that serve a model: their number and their devices."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stoker.system.wording import format_count


class Placement(Struct, frozen=True):
    """The replicas of a model: each one is served by a device process of its own.

    Attributes:
        shortfall: The reason for fewer replicas than the setting, for the operator; empty if there are all.
    """

    devices: tuple[str, ...]
    shortfall: str = ""

    @property
    def cpu_replicas(self) -> int:
        """The number of replicas that share the cores; `auto` counts, because it may mean the CPU."""
        return sum(map(_shares_cores, self.devices))


def place(devices: Sequence[str], replicas: int, cores: int) -> Placement:
    """Spread the replicas of a model round robin over its devices.

    On the CPU at most one for each core runs: more would only take turns. A GPU may have any number: a second one can
    prepare a batch while the first one computes.

    Args:
        devices: Its devices as settings name them: `auto`, or any of `cpu`, `cuda:N` and UUIDs.
        replicas: The setting; 0 is one for each device.
    """
    requested = [devices[number % len(devices)] for number in range(replicas or len(devices))]
    placed: list[str] = []
    for device in requested:
        if not _shares_cores(device) or sum(map(_shares_cores, placed)) < cores:
            placed.append(device)
    if len(placed) == len(requested):
        return Placement(tuple(placed))
    where = "with device auto" if "auto" in placed else "on the CPU"
    more = "; name a GPU, such as cuda:0, to have more on it" if "auto" in placed else ""
    return Placement(
        tuple(placed),
        f"{format_count(len(requested), 'replica')} were asked for, "
        f"{len(placed)} {'runs' if len(placed) == 1 else 'run'}: "
        f"{where} there is at most one for each core, and this server may use {cores}{more}",
    )


def _shares_cores(device: str) -> bool:
    return device in ("cpu", "auto")
