"""Batches, instances and versions in a configuration of Triton as settings of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from stoker.models.pbtxt_fields import Fields, InvalidField

_MOST_BATCH_ROWS: Final = 65536
_DEVICES: Final = {"KIND_CPU": ("cpu",)}


def version_settings(fields: Fields, name: str) -> dict[str, Any]:
    """Return the served versions of the field of this name as settings of the model."""
    policy = fields.message(name)
    if policy is None:
        return {}
    policy.check_known("latest", "all", "specific")
    latest, specific = policy.message("latest"), policy.message("specific")
    if specific is not None:
        return {"versions": list(specific.sizes("versions"))}
    if latest is not None:
        return {"versions": f"latest:{latest.number('num_versions') or 1}"}
    return {"versions": "all"} if policy.has("all") else {}


def batching_settings(fields: Fields, pass_over: Callable[..., None]) -> dict[str, Any]:
    """Return the batches and devices of a configuration as settings of the model.

    Args:
        pass_over: Called with each field that has no effect, and a setting that has.
    """
    rows = fields.number("max_batch_size")
    return {
        **({"max_batch_rows": min(rows, _MOST_BATCH_ROWS)} if rows else {}),
        **_dynamic_batching(fields, pass_over),
        **_instances(fields, pass_over),
    }


def _dynamic_batching(fields: Fields, pass_over: Callable[..., None]) -> dict[str, Any]:
    batching = fields.message("dynamic_batching")
    if batching is None:
        return {}
    instead = {
        "preferred_batch_size": "a batch leaves when the device is free; batch_buckets are sizes to fill up to",
        "preserve_ordering": "an answer goes out when it is ready",
        "priority_levels": "",
        "default_priority_level": "",
        "default_queue_policy": "timeout_ms and max_concurrent_requests limit how long and how many wait",
        "priority_queue_policy": "",
    }
    batching.check_known("max_queue_delay_microseconds", *instead)
    for field, why in instead.items():
        if batching.has(field) and not (field == "preserve_ordering" and not batching.flag(field)):
            pass_over(f"dynamic_batching.{field}", why)
    delay_us = batching.number("max_queue_delay_microseconds")
    return {} if delay_us is None else {"max_delay_ms": delay_us / 1000}


def _instances(fields: Fields, pass_over: Callable[..., None]) -> dict[str, Any]:
    groups = fields.messages("instance_group")
    counts: list[int] = []
    devices: list[str] = []
    for group in groups:
        others = ("rate_limiter", "secondary_devices", "profile", "host_policy")
        group.check_known("name", "kind", "count", "gpus", "passive", *others)
        if group.flag("passive"):
            raise InvalidField(f"{group.place}passive is not offered: leave the group out")
        for field in others:
            if group.has(field):
                pass_over(f"{group.place}{field}")
        kind = group.identifier("kind") or "KIND_AUTO"
        if kind not in ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"):
            raise InvalidField(
                f"{group.place}kind must be KIND_AUTO, KIND_GPU, KIND_CPU or KIND_MODEL, not {kind}"
            )
        counts.append(group.number("count") or 1)
        devices += _DEVICES.get(kind, ()) or [f"cuda:{index}" for index in group.sizes("gpus")]
    if len(set(counts)) > 1:
        pass_over("instance_group.count where it differs", f"each device has {max(counts)} instances")
    settings: dict[str, Any] = {"instances": max(counts)} if counts else {}
    return {**settings, "device": list(dict.fromkeys(devices))} if devices else settings
