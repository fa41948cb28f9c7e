"""Facts and readings of GPUs from the NVIDIA driver, through NVML (docs.nvidia.com/deploy/nvml-api).

Any query may be unsupported by the GPU, its MIG mode, a virtual machine or an older driver. Its value is then absent;
the others are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from stoker.gpu.facts import Driver, Gpu, GpuMemory, GpuReading, MigDevice

_TEMPERATURE_OF_THE_CHIP: Final = 0
_LOST: Final = (
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_UNKNOWN",
)
"""NVML's errors for a lost GPU or driver; a new session may find it again."""


def gpus() -> list[Gpu]:
    """Return the GPUs that the NVIDIA driver sees, in the order of the PCI bus.

    Raises:
        OSError: There is no usable NVIDIA driver.
    """
    with _session() as nvml:
        found = [_gpu(nvml, index, handle) for index, handle in _handles(nvml) if handle is not None]
    return [gpu for gpu in found if gpu is not None]


def describe_driver() -> Driver:
    """Describe the NVIDIA driver.

    Raises:
        OSError: There is no usable driver.
    """
    with _session() as nvml:
        version = _query(nvml, (), "nvmlSystemGetDriverVersion")
        cuda = _query(nvml, (), "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
    return Driver(version, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}")


def read_memory(uuids: Iterable[str]) -> dict[str, GpuMemory]:
    """Return the memory of GPUs and MIG devices by their UUIDs. Devices without such a value are left out.

    It takes a millisecond while a `GpuReader` of the process keeps NVML initialised.

    Raises:
        OSError: There is no usable NVIDIA driver.
    """
    found = {}
    with _session() as nvml:
        for uuid in uuids:
            handle = _query(nvml, (uuid,), "nvmlDeviceGetHandleByUUID")
            memory = None if handle is None else _query(nvml, (handle,), "nvmlDeviceGetMemoryInfo")
            if memory is not None:
                running = _query(nvml, (handle,), "nvmlDeviceGetComputeRunningProcesses") or ()
                by_process = {
                    process.pid: int(process.usedGpuMemory)
                    for process in running
                    if process.usedGpuMemory is not None
                }
                found[uuid] = GpuMemory(int(memory.total), int(memory.used), by_process)
    return found


class GpuReader:
    """Reads all GPUs repeatedly. NVML stays initialised between readings, because that takes longer than a reading.

    Only one thread at a time may use it.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._has_read = False

    def read(self) -> list[GpuReading]:
        """Read every GPU. GPUs that are lost, also by a restart of the driver, are left out until they are back.

        Raises:
            OSError: There is no usable NVIDIA driver, and there was none at an earlier reading.
        """
        try:
            if self._nvml is None:
                self._nvml = _open()
        except OSError:
            if self._has_read:
                return []
            raise
        self._has_read = True
        nvml, readings, is_lost = self._nvml, [], False
        try:
            for index, handle in _handles(nvml):
                reading = None if handle is None else _reading(nvml, index, handle)
                is_lost |= reading is None
                readings += [] if reading is None else [reading]
        except nvml.NVMLError:
            is_lost = True
        if is_lost:
            self._nvml = None
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
        return readings


def _open() -> Any:
    """Initialise NVML and return it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"no NVIDIA driver is usable here (NVML: {error})") from error
    return pynvml


@contextmanager
def _session() -> Iterator[Any]:
    nvml = _open()
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise OSError(f"the NVIDIA driver does not answer (NVML: {error})") from error
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _handles(nvml: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and handle of each GPU that the process may use; the handle of a lost one is None."""
    lost = {getattr(nvml, name) for name in _LOST}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            yield index, nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            if error.value in lost:
                yield index, None


def _query(nvml: Any, arguments: tuple[Any, ...], *functions: str) -> Any:
    """Return the result of the first supported function; None if none is."""
    for name in functions:
        function = getattr(nvml, name, None)
        with suppress(nvml.NVMLError):
            if function is not None:
                return function(*arguments)
    return None


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu | None:
    uuid = _query(nvml, (handle,), "nvmlDeviceGetUUID")
    if uuid is None:
        return None
    memory = _query(nvml, (handle,), "nvmlDeviceGetMemoryInfo")
    capability = _query(nvml, (handle,), "nvmlDeviceGetCudaComputeCapability")
    bus = _query(nvml, (handle,), "nvmlDeviceGetPciInfo")
    mode = _query(nvml, (handle,), "nvmlDeviceGetMigMode")
    divided = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return Gpu(
        index,
        uuid,
        _query(nvml, (handle,), "nvmlDeviceGetName") or "NVIDIA GPU",
        None if memory is None else int(memory.total),
        None if memory is None else int(memory.free),
        None if capability is None else ".".join(map(str, capability)),
        None if bus is None else bus.busId,
        divided,
        tuple(_mig_devices(nvml, handle)) if divided else (),
    )


def _mig_devices(nvml: Any, handle: Any) -> Iterator[MigDevice]:
    for number in range(_query(nvml, (handle,), "nvmlDeviceGetMaxMigDeviceCount") or 0):
        part = _query(nvml, (handle, number), "nvmlDeviceGetMigDeviceHandleByIndex")
        uuid = None if part is None else _query(nvml, (part,), "nvmlDeviceGetUUID")
        if uuid is None:
            continue
        memory = _query(nvml, (part,), "nvmlDeviceGetMemoryInfo")
        yield MigDevice(
            uuid,
            _query(nvml, (part,), "nvmlDeviceGetName") or "MIG device",
            None if memory is None else int(memory.total),
            None if memory is None else int(memory.free),
        )


def _reading(nvml: Any, index: int, handle: Any) -> GpuReading | None:
    uuid = _query(nvml, (handle,), "nvmlDeviceGetUUID")
    if uuid is None:
        return None
    memory = _query(nvml, (handle,), "nvmlDeviceGetMemoryInfo")
    busy = _query(nvml, (handle,), "nvmlDeviceGetUtilizationRates")
    chip = (handle, _TEMPERATURE_OF_THE_CHIP)
    return GpuReading(
        index,
        uuid,
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_free_bytes=None if memory is None else int(memory.free),
        utilization_percent=None if busy is None else int(busy.gpu),
        power_mw=_query(nvml, (handle,), "nvmlDeviceGetPowerUsage"),
        power_limit_mw=_query(nvml, (handle,), "nvmlDeviceGetEnforcedPowerLimit"),
        temperature_c=_query(nvml, chip, "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        energy_mj=_query(nvml, (handle,), "nvmlDeviceGetTotalEnergyConsumption"),
        throttle_bits=_query(
            nvml,
            (handle,),
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
    )
