"""Readings of GPUs as Prometheus metrics, and again under the names that Triton gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.gpu.facts import GpuReading

__all__ = ["gpu_metrics"]


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A number that is read of each GPU.

    Attributes:
        name: Its name; a counter's is without `_total`.
        text: What it is.
        read: The number of a reading, None where its driver does not say.
        alias: Triton's name for it.
        counter: Whether it only grows.
    """

    name: str
    text: str
    read: Callable[[GpuReading], float | None]
    alias: str | None = None
    counter: bool = False


def _scaled(field: str, unit: float) -> Callable[[GpuReading], float | None]:
    def read(reading: GpuReading) -> float | None:
        value = getattr(reading, field)
        return None if value is None else value / unit

    return read


_QUANTITIES: Final = (
    _Quantity(
        "stoker_gpu_memory_used_bytes",
        "GPU memory in use, by NVML.",
        _scaled("memory_used_bytes", 1),
        "nv_gpu_memory_used_bytes",
    ),
    _Quantity(
        "stoker_gpu_memory_total_bytes",
        "GPU memory, by NVML.",
        _scaled("memory_total_bytes", 1),
        "nv_gpu_memory_total_bytes",
    ),
    _Quantity(
        "stoker_gpu_memory_free_bytes",
        "GPU memory that nothing holds, by NVML.",
        _scaled("memory_free_bytes", 1),
    ),
    _Quantity(
        "stoker_gpu_utilization_ratio",
        "Share of time in which a kernel ran, by NVML.",
        _scaled("utilization_percent", 100),
        "nv_gpu_utilization",
    ),
    _Quantity(
        "stoker_gpu_power_watts",
        "Power that the GPU draws, by NVML.",
        _scaled("power_mw", 1000),
        "nv_gpu_power_usage",
    ),
    _Quantity(
        "stoker_gpu_power_limit_watts",
        "Power that the driver lets the GPU draw, by NVML.",
        _scaled("power_limit_mw", 1000),
        "nv_gpu_power_limit",
    ),
    _Quantity(
        "stoker_gpu_temperature_celsius", "Temperature of the GPU, by NVML.", _scaled("temperature_c", 1)
    ),
    _Quantity(
        "stoker_gpu_energy_joules",
        "Energy that the GPU took since its driver was loaded, by NVML.",
        _scaled("energy_mj", 1000),
        "nv_energy_consumption",
        counter=True,
    ),
)


def gpu_metrics(readings: Sequence[GpuReading]) -> Iterator[Metric]:
    """All metrics of GPUs; what was not read is left out, and is not 0."""
    for quantity in _QUANTITIES:
        values = [(reading, quantity.read(reading)) for reading in readings]
        yield from _families(quantity, [(reading, value) for reading, value in values if value is not None])
    throttled = GaugeMetricFamily(
        "stoker_gpu_throttle_reason",
        "1 for each reason why the clocks of the GPU are below their maximum, by NVML.",
        labels=["gpu", "uuid", "reason"],
    )
    for reading in readings:
        for reason, holds in reading.throttle_reasons().items():
            throttled.add_metric([str(reading.index), reading.uuid, reason], float(holds))
    yield throttled


def _families(quantity: _Quantity, values: Sequence[tuple[GpuReading, float]]) -> Iterator[Metric]:
    kind = CounterMetricFamily if quantity.counter else GaugeMetricFamily
    own = kind(quantity.name, quantity.text, labels=["gpu", "uuid"])
    for reading, value in values:
        own.add_metric([str(reading.index), reading.uuid], value)
    yield own
    if quantity.alias is not None:
        # prometheus_client would end the name of a counter in _total, which Triton's names do not.
        kind_of_alias, ending = ("unknown", "_total") if quantity.counter else ("gauge", "")
        alias = Metric(quantity.alias, f"Triton's name of {quantity.name}{ending}.", kind_of_alias)
        for reading, value in values:
            alias.add_sample(quantity.alias, {"gpu_uuid": reading.uuid}, value)
        yield alias
