"""How much memory of each device models may use, and how much the device processes use.

On the CPU, that is the private memory of the processes; on a GPU, the memory that the driver reports for each
process. In many containers and for MIG devices it reports none: then the memory counts that the GPU uses now and did
not at the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Literal

from stoker.deployment import Deployment
from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.gpu.facts import GpuMemory
from stoker.gpu.nvml import read_memory
from stoker.gpu.selection import choose_device
from stoker.residency.footprints import HOST
from stoker.supervisor.background import in_thread
from stoker.supervisor.device_process import DeviceProcess
from stoker.system.resources import main_memory, private_memory

logger = logging.getLogger(__name__)

_RESERVE_SHARE: Final = 0.1
_RESERVE_BYTES: Final = 512 << 20


class DeviceMemory:
    """The budget of each place, and the memory that device processes use there.

    Attributes:
        free_bytes: By place the memory that was free when the server started, or the first of those that took over
            from each other.
    """

    def __init__(
        self,
        memory_mb: int | Literal["auto"],
        processes: Sequence[DeviceProcess],
        free_bytes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Create it without places.

        Args:
            memory_mb: The budget of each place in MiB; `auto` for its free memory less a reserve.
            processes: The device processes, which change.
        """
        self.free_bytes = dict(free_bytes)
        self._memory_mb, self._processes = memory_mb, processes
        self._places: dict[str, tuple[str, ...]] = {}
        self._on_cpu: set[tuple[str, str]] = set()
        """Device settings with frameworks that found no GPU where `auto` was expected to find one."""
        self._budgets: dict[str, int] = {}
        self._gpu_bytes: dict[str, int] = {}
        self._reporting: set[str] = set()
        """GPUs whose driver has reported the memory of a device process."""
        self._reading = asyncio.Lock()

    def learn(self, devices: Iterable[str]) -> None:
        """Find the places of device settings, and their budgets; may block.

        Raises:
            DeviceUnavailable: There is no such device.
            InvalidSettings: `memory_mb` cannot be honoured there.
        """
        for setting in devices:
            if setting not in self._places:
                device, _ = choose_device(setting, (), lambda _uuid, _framework: None)
                places = {gpu.uuid: str(gpu) for gpu in device.gpus} or {HOST: HOST}
                for place, name in places.items():
                    if place not in self._budgets:
                        self._budgets[place] = self._find_budget(place, name)
                self._places[setting] = tuple(places)

    def learn_available(self, devices: Iterable[str]) -> None:
        """Like `learn`, without devices that do not exist: a load says what is wrong with them."""
        for setting in devices:
            with suppress(DeviceUnavailable):
                self.learn((setting,))

    async def measure(self, devices: Collection[str] = ()) -> None:
        """Read the memory of the GPUs, after learning further devices; raises as `learn` does.

        Where the driver does not answer, its last answer counts.
        """
        async with self._reading:
            if not self._places.keys() >= set(devices):
                await in_thread(self.learn, devices)
            self._note_devices()
            gpus = [place for place in self._budgets if place != HOST]
            if gpus:
                with suppress(OSError):
                    for place, memory in (await in_thread(read_memory, gpus)).items():
                        self._gpu_bytes[place] = self._used_of_gpu(place, memory)

    def places_of(self, model: Deployment) -> set[str]:
        """Return the places whose memory a model needs, as far as they are known."""
        return {place for setting in model.devices for place in self._find_places(setting, model.framework)}

    def budget(self, place: str) -> int:
        """Return how many bytes models may use in a place."""
        if place not in self._budgets:
            # Host memory, where a GPU was expected.
            try:
                self._budgets[place] = self._find_budget(place, place)
            except InvalidSettings as error:
                logger.error("models may use no memory of %s: %s", place, error)  # noqa: TRY400
                self._budgets[place] = 0
        return self._budgets[place]

    def used(self, place: str) -> int:
        """Return the bytes that device processes use in a place: of a GPU as of the last `measure`."""
        if place != HOST:
            return self._gpu_bytes.get(place, 0)
        return sum(process_memory(process) for process in self._processes if place in self.places_in(process))

    def used_by_place(self) -> dict[str, int]:
        """Return the same for each place that has a device process, or the first that is known if none has."""
        places = {place for process in self._processes for place in self.places_in(process)}
        return {place: self.used(place) for place in places or [*self._budgets][:1]}

    def places_in(self, process: DeviceProcess) -> tuple[str, ...]:
        """Return the places that a device process uses: those of its setting until it has reported its device."""
        if process.report is not None and process.report.device == HOST:
            return (HOST,)
        return self._places.get(process.group.device, (HOST,))

    def _find_places(self, setting: str, framework: str) -> tuple[str, ...]:
        return (HOST,) if (setting, framework) in self._on_cpu else self._places.get(setting, (HOST,))

    def _note_devices(self) -> None:
        """Note which processes found no GPU that they can use."""
        for process in self._processes:
            if process.report is not None and process.report.device == HOST:
                self._on_cpu.update((process.group.device, model.framework) for model in process.group.models)

    def _used_of_gpu(self, place: str, memory: GpuMemory) -> int:
        """The memory that device processes, and processes that they have started, use of a GPU."""
        leaders = {
            one.child.process.pid for one in self._processes if one.child and place in self.places_in(one)
        }
        sizes_bytes = [
            size_bytes for pid, size_bytes in memory.processes.items() if _group_of(pid) in leaders
        ]
        if sizes_bytes:
            self._reporting.add(place)
        if place in self._reporting:
            return sum(sizes_bytes)
        return max(0, memory.used_bytes - (memory.total_bytes - self.free_bytes[place]))

    def _find_budget(self, place: str, name: str) -> int:
        total_bytes, free_bytes = _read_sizes(place, name)
        free_bytes = self.free_bytes.setdefault(place, free_bytes)
        if self._memory_mb != "auto":
            if self._memory_mb << 20 > total_bytes:
                raise InvalidSettings(
                    f"memory_mb {self._memory_mb} is more than the {total_bytes >> 20} MiB of {name}"
                )
            return self._memory_mb << 20
        reserve_bytes = max(_RESERVE_BYTES, int(_RESERVE_SHARE * total_bytes))
        if free_bytes <= reserve_bytes:
            raise InvalidSettings(
                f"memory_mb auto leaves models nothing: {free_bytes >> 20} MiB of {name} are free, and "
                f"{reserve_bytes >> 20} MiB stay in reserve"
            )
        budget_bytes = free_bytes - reserve_bytes
        logger.info(
            "models may use %d MiB of %s: %d MiB were free, %d MiB stay in reserve",
            budget_bytes >> 20, name, free_bytes >> 20, reserve_bytes >> 20,
        )  # fmt: skip
        return budget_bytes


def process_memory(process: DeviceProcess) -> int:
    """Return the private host memory of a device process in bytes."""
    if process.child is not None:
        # It may have just ended.
        with suppress(OSError):
            return private_memory(process.child.process.pid)
    return 0


def _read_sizes(place: str, name: str) -> tuple[int, int]:
    """Size and free memory of a place in bytes."""
    if place == HOST:
        return main_memory()
    memory = read_memory((place,)).get(place)
    if memory is None:
        raise InvalidSettings(
            f"memory_mb cannot be honoured: the driver does not tell the memory of {name}; leave memory_mb out, "
            "and limit models by gpu_memory_mb"
        )
    return memory.total_bytes, memory.total_bytes - memory.used_bytes


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0
