"""The dashboard of devices: what the GPUs do, and which models have them."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from panels import ALL, MODEL, board, lines, number

__all__ = ["gpus"]

_GPU = "{{instance}} GPU {{gpu}}"


def _of_each(metric: str) -> dict[str, str]:
    return {_GPU: f"max by (instance, gpu, uuid) ({metric}{{{ALL}}})"}


def gpus() -> Dashboard:
    """Return the dashboard."""
    used, total = f"stoker_gpu_memory_used_bytes{{{ALL}}}", f"stoker_gpu_memory_total_bytes{{{ALL}}}"
    waits = (
        f"sum by (le, model, version) (rate(stoker_turn_wait_seconds_bucket{{{MODEL}}}[$__rate_interval]))"
    )
    return board(
        "stoker-gpus",
        "GPUs",
        "Utilisation, memory, power and clocks of the GPUs, and the models that share them.",
        {
            "Now": [
                number("GPUs", "That servers see.", "short", f"count({total})"),
                number(
                    "Utilisation",
                    "Mean share of time in which a kernel ran.",
                    "percentunit",
                    f"avg(stoker_gpu_utilization_ratio{{{ALL}}})",
                ),
                number("Memory", "Used, of all GPUs.", "percentunit", f"sum({used}) / sum({total})"),
                number("Power", "Drawn by all GPUs.", "watt", f"sum(stoker_gpu_power_watts{{{ALL}}})"),
                number("Hottest", "", "celsius", f"max(stoker_gpu_temperature_celsius{{{ALL}}})"),
                number(
                    "Slowed down",
                    "GPUs whose clocks are held down by heat or by their board's power.",
                    "short",
                    "count(max by (instance, gpu) (stoker_gpu_throttle_reason"
                    f'{{{ALL}, reason=~".*thermal.*|.*brake.*"}}) > 0) or vector(0)',
                ),
            ],
            "GPUs": [
                lines(
                    "Utilisation",
                    "Share of time in which a kernel ran.",
                    "percentunit",
                    _of_each("stoker_gpu_utilization_ratio"),
                    most=1,
                ),
                lines("Memory used", "", "bytes", _of_each("stoker_gpu_memory_used_bytes")),
                lines("Memory free", "", "bytes", _of_each("stoker_gpu_memory_free_bytes")),
                lines(
                    "Power of its limit",
                    "Power drawn, of what the driver allows.",
                    "percentunit",
                    {
                        _GPU: f"max by (instance, gpu, uuid) (stoker_gpu_power_watts{{{ALL}}}"
                        f" / stoker_gpu_power_limit_watts{{{ALL}}})"
                    },
                    most=1,
                ),
                lines("Temperature", "", "celsius", _of_each("stoker_gpu_temperature_celsius")),
                lines(
                    "Why clocks are down",
                    "1 for each reason that holds.",
                    "short",
                    {
                        f"{_GPU}: {{{{reason}}}}": "max by (instance, gpu, reason) "
                        f"(stoker_gpu_throttle_reason{{{ALL}}}) > 0"
                    },
                ),
                lines(
                    "Energy a thousand rows",
                    "Joules of all GPUs, for a thousand answered rows.",
                    "joule",
                    {
                        "J": f"1000 * sum(rate(stoker_gpu_energy_joules_total{{{ALL}}}[$__rate_interval]))"
                        f" / sum(rate(stoker_rows_total{{{ALL}}}[$__rate_interval]))"
                    },
                ),
            ],
            "Use of the devices": [
                lines(
                    "Device time by model",
                    "Seconds of device time in a second.",
                    "percentunit",
                    {
                        "{{device}} {{model}}": "sum by (device, model) "
                        f"(rate(stoker_device_busy_seconds_total{{{MODEL}}}[$__rate_interval]))"
                    },
                    stacked=True,
                ),
                lines(
                    "p99 of waiting for a turn",
                    "Only models that take turns of their device.",
                    "s",
                    {"{{model}} {{version}}": f"histogram_quantile(0.99, {waits})"},
                ),
            ],
        },
    )
