"""GPUs by NVML, also with unsupported queries and lost GPUs."""

from __future__ import annotations

import pynvml
import pytest
from msgspec.structs import fields, replace
from tests.puppet_nvml import GIB, PuppetGpu, a_gpu, a_mig_gpu, install, set_memory

from stoker.gpu.facts import Driver, Gpu, GpuMemory, GpuReading, MigDevice
from stoker.gpu.nvml import GpuReader, describe_driver, gpus, read_memory

UUID = "GPU-00000000-0000-4000-8000-123456789abc"
FULL = GpuReading(
    index=0,
    uuid=UUID,
    memory_total_bytes=140 * GIB,
    memory_used_bytes=40 * GIB,
    memory_free_bytes=100 * GIB,
    utilization_percent=37,
    power_mw=412_500,
    power_limit_mw=700_000,
    temperature_c=61,
    energy_mj=9_876_543_210,
    throttle_bits=0x24,
)
QUERIES = {
    "nvmlDeviceGetMemoryInfo": ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"),
    "nvmlDeviceGetUtilizationRates": ("utilization_percent",),
    "nvmlDeviceGetPowerUsage": ("power_mw",),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_mw",),
    "nvmlDeviceGetTemperatureV": ("temperature_c",),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_mj",),
    "nvmlDeviceGetCurrentClocksEventReasons": ("throttle_bits",),
}


def without(*functions: str) -> PuppetGpu:
    """Return a GPU without support for these queries."""
    gpu = a_gpu()
    for function in functions:
        del gpu.answers[function]
    return gpu


def test_memory_is_read_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """MIG devices have it too; a device that is lost, or whose memory is unknown, is left out."""
    whole, divided = a_gpu(), a_mig_gpu(1, 3)
    (part,) = filter(None, divided.parts)
    set_memory(whole, 600, {7: 200, 8: None})
    install(monkeypatch, whole, divided, silent := a_gpu(2), a_gpu(3)).gpus[
        3
    ].error = pynvml.NVML_ERROR_GPU_IS_LOST
    del silent.answers["nvmlDeviceGetMemoryInfo"]
    uuids = [each.answers["nvmlDeviceGetUUID"] for each in (whole, part, silent, a_gpu(3))]
    assert read_memory(uuids) == {
        uuids[0]: GpuMemory(GIB, 600 << 20, {7: 200 << 20}),
        uuids[1]: GpuMemory(18 * GIB, 2 * GIB, {}),
    }
    assert read_memory([]) == {}


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the driver; NVML is closed again."""
    puppet = install(monkeypatch, a_gpu())
    (gpu,) = gpus()
    assert gpu == Gpu(0, UUID, "NVIDIA H200", 140 * GIB, 100 * GIB, "9.0", "00000000:08:00.0")
    assert describe_driver() == Driver("580.95.05", "13.0")
    assert puppet.opened == puppet.closed == 2


@pytest.mark.parametrize(
    ("function", "absent"),
    [
        ("nvmlDeviceGetMemoryInfo", {"memory_total_bytes": None, "memory_free_bytes": None}),
        ("nvmlDeviceGetCudaComputeCapability", {"compute_capability": None}),
        ("nvmlDeviceGetPciInfo", {"pci_bus": None}),
        ("nvmlDeviceGetMigMode", {}),
        ("nvmlDeviceGetName", {"name": "NVIDIA GPU"}),
    ],
)
def test_unsupported_fact_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, function: str, absent: dict[str, object]
) -> None:
    """Its value is absent, or a default; GPUs without MIG do not support that query."""
    install(monkeypatch, a_gpu())
    (full,) = gpus()
    install(monkeypatch, without(function))
    assert gpus() == [replace(full, **absent)]  # type: ignore[arg-type]


def test_mig_devices_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty places between them are skipped."""
    install(monkeypatch, a_mig_gpu(0, 5, 6), a_gpu(1))
    divided, whole = gpus()
    assert divided.mig_mode
    assert divided.mig_devices == tuple(
        MigDevice(
            f"MIG-0000000{part}-1111-5111-9111-123456789abc", "NVIDIA H200 MIG 1g.18gb", 18 * GIB, 16 * GIB
        )
        for part in (5, 6)
    )
    assert (whole.index, whole.mig_mode, whole.mig_devices) == (1, False, ())


def test_lost_gpu_does_not_renumber_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does a GPU that this process may not use."""
    puppet = install(monkeypatch, a_gpu(0), a_gpu(1), a_gpu(2))
    puppet.gpus[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
    puppet.gpus[1].error = pynvml.NVML_ERROR_NO_PERMISSION
    assert [gpu.index for gpu in gpus()] == [2]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
    ],
)
def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch, error: int, message: str) -> None:
    """The message is NVML's."""
    install(monkeypatch).error = error
    for read in (gpus, describe_driver, GpuReader().read):
        with pytest.raises(OSError, match=message):
            read()


def test_a_reading_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all values of the metrics, and the reasons of the clocks in words."""
    install(monkeypatch, a_gpu())
    (reading,) = GpuReader().read()
    assert reading == FULL
    reasons = reading.throttle_reasons()
    assert [reason for reason, holds in reasons.items() if holds] == ["sw_power_cap", "sw_thermal_slowdown"]


@pytest.mark.parametrize("function", QUERIES)
def test_unsupported_query_does_not_affect_others(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """Its value is absent, which is not 0."""
    install(monkeypatch, without(function))
    assert GpuReader().read() == [replace(FULL, **dict.fromkeys(QUERIES[function]))]


def test_gpu_without_supported_queries_has_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading has the number and the UUID."""
    install(monkeypatch, without(*QUERIES))
    (reading,) = GpuReader().read()
    assert reading == GpuReading(0, UUID)
    assert reading.throttle_reasons() == {}


def test_older_driver_is_queried_by_older_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer libraries lack the older functions for temperature and clocks."""
    gpu = without("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons")
    gpu.answers.update(nvmlDeviceGetTemperature=48, nvmlDeviceGetCurrentClocksThrottleReasons=1)
    install(monkeypatch, gpu)
    (reading,) = GpuReader().read()
    assert (reading.temperature_c, reading.throttle_bits) == (48, 1)


def test_mig_mode_has_no_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver does not support the query for a divided GPU."""
    install(monkeypatch, a_mig_gpu(0, 1))
    (reading,) = GpuReader().read()
    assert reading == replace(FULL, utilization_percent=None)


def test_nvml_stays_open_between_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening takes longer than reading."""
    puppet = install(monkeypatch, a_gpu())
    reader = GpuReader()
    assert [len(reader.read()) for _ in range(3)] == [1, 1, 1]
    assert (puppet.opened, puppet.closed) == (1, 0)


def test_a_restarted_driver_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then there are no readings, and no error; a driver that was never there is one."""
    puppet = install(monkeypatch, a_gpu())
    reader = GpuReader()
    assert len(reader.read()) == 1
    puppet.error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert [reader.read(), reader.read()] == [[], []]
    puppet.error = 0
    assert reader.read() == [FULL]
    assert (puppet.opened, puppet.closed) == (2, 1)


def test_a_lost_gpu_is_read_again_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are read meanwhile. NVML is opened again, because a session does not find a lost GPU again."""
    puppet = install(monkeypatch, a_gpu(0), a_gpu(1))
    reader = GpuReader()
    puppet.gpus[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert [reading.index for reading in reader.read()] == [1]
    puppet.gpus[0].error = 0
    assert [reading.index for reading in reader.read()] == [0, 1]
    assert puppet.opened == 2


def test_forbidden_gpu_does_not_reopen_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays forbidden."""
    puppet = install(monkeypatch, a_gpu(0), a_gpu(1))
    puppet.gpus[0].error = pynvml.NVML_ERROR_NO_PERMISSION
    reader = GpuReader()
    assert [[reading.index for reading in reader.read()] for _ in range(3)] == [[1], [1], [1]]
    assert puppet.opened == 1


@pytest.mark.parametrize("field", [field.name for field in fields(GpuReading)[2:]])
def test_words_hold_a_reading(field: str) -> None:
    """Each value has its own place, absent values stay absent, and 0 is a value."""
    for reading in (FULL, replace(FULL, **{field: None}), replace(FULL, **{field: 0})):
        words = reading.to_words()
        assert len(words) == GpuReading.WORDS
        assert GpuReading.from_words(0, words) == reading


def test_words_of_zeros_are_no_reading() -> None:
    """Fresh memory has no GPU."""
    assert GpuReading.from_words(3, [0] * GpuReading.WORDS) is None
