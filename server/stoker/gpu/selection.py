"""The choice of a device by its setting. It uses the NVIDIA driver and no library of a framework."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from stoker.deployment import Device
from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.gpu.facts import Gpu, MigDevice, Visible, visible_devices
from stoker.gpu.nvml import gpus
from stoker.settings.readers import DEVICE_SEPARATOR, read_device
from stoker.system.resources import usable_cores
from stoker.system.wording import format_count

_DRIVER_HINT: Final = "is the NVIDIA driver installed, and the container started with --gpus?"


def choose_device(
    setting: str,
    frameworks: Collection[str],
    problem: Callable[[str, str], str | None],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Device, str]:
    """Resolve a device setting.

    Args:
        setting: `auto`, `cpu`, `cuda:N`, or the UUID of a GPU (`GPU-…`) or of a MIG device (`MIG-…`); several GPUs
            that one process sees are joined by `+`.
        frameworks: Frameworks of the models that will run on it; each must be able to use it.
        problem: Returns why a framework cannot use the GPU with a UUID, or GPUs with comma-separated UUIDs; None if
            it can.
        environ: The operator's environment; its CUDA_VISIBLE_DEVICES applies.

    Returns:
        The device, and the reason of the choice for the log.

    Raises:
        InvalidSettings: The setting is none of these.
        DeviceUnavailable: The chosen GPU cannot be used; the message names the missing part.
    """
    try:
        read_device(setting)
    except ValueError as error:
        raise InvalidSettings(f"device {error}, got {setting!r}") from None
    if setting == "cpu":
        return cpu_device(), "as asked for"
    try:
        first, *further = (_find(name, environ) for name in setting.split(DEVICE_SEPARATOR))
        device = _join(first, further)
        _check(device, frameworks, problem)
    except DeviceUnavailable as error:
        if setting == "auto":
            return cpu_device(), f"no GPU: {error}"
        hint = f"{_DRIVER_HINT} " if isinstance(error.__cause__, OSError) else ""
        raise DeviceUnavailable(
            f"{setting} cannot be used: {error}; {hint}--device auto serves without"
        ) from error
    return device, "the first GPU that can be used" if setting == "auto" else "as asked for"


def _check(device: Device, frameworks: Collection[str], problem: Callable[[str, str], str | None]) -> None:
    for framework in sorted(frameworks):
        reason = problem(device.visible, framework)
        if reason is not None:
            raise DeviceUnavailable(reason)


def cpu_device() -> Device:
    """Return the CPU."""
    return Device("cpu", 0, f"{_cpu_name()}, {format_count(usable_cores(), 'core')}")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def mig_hint(gpu: Gpu) -> str:
    """Return advice for a GPU in MIG mode: its MIG devices, which can be used."""
    if not gpu.mig_devices:
        return "in MIG mode without a MIG device; make one with nvidia-smi mig -cgi PROFILE -C"
    parts = ", ".join(f"{part.uuid} ({part.name})" for part in gpu.mig_devices)
    return f"in MIG mode; name one of its MIG devices: {parts}"


def _find(setting: str, environ: Mapping[str, str]) -> Device:
    try:
        found = gpus()
    except OSError as error:
        raise DeviceUnavailable(str(error)) from error
    visible = visible_devices(found, environ)
    if setting == "auto" and visible:
        whole = [n for n, device in enumerate(visible) if device.part or not device.gpu.mig_mode]
        return _device(visible, whole[0] if whole else 0)
    if setting.startswith(("GPU-", "MIG-")):
        return _by_uuid(setting, found, visible)
    number = 0 if setting == "auto" else int(setting.removeprefix("cuda:"))
    if number < len(visible):
        return _device(visible, number)
    wanted = "" if setting == "auto" else f", {setting} is not among them"
    raise DeviceUnavailable(f"{_describe_visible(found, visible, environ)}{wanted}")


def _describe_visible(found: Sequence[Gpu], visible: Sequence[Visible], environ: Mapping[str, str]) -> str:
    count = f"the NVIDIA driver sees {format_count(len(found), 'GPU')}"
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    return count if variable is None else f"{count}, CUDA_VISIBLE_DEVICES={variable} leaves {len(visible)}"


def _device(visible: Sequence[Visible], number: int) -> Device:
    gpu, part = visible[number].gpu, visible[number].part
    if part is not None:
        return _make_device(number, part)
    if gpu.mig_mode:
        raise DeviceUnavailable(f"{gpu.name} ({gpu.uuid}) is {mig_hint(gpu)}")
    return _make_device(number, gpu)


def _join(first: Device, further: Sequence[Device]) -> Device:
    """Join the GPUs of one process to one device; number and UUID may name the same GPU."""
    uuids = [device.uuid for device in (first, *further)]
    if len(set(uuids)) < len(uuids):
        raise DeviceUnavailable("it names a GPU twice")
    if not further:
        return first
    description = " + ".join(device.description for device in (first, *further))
    return replace(first, description=description, further=tuple(further))


def _make_device(number: int, device: Gpu | MigDevice) -> Device:
    size_bytes = device.memory_total_bytes
    size = "" if size_bytes is None else f", {size_bytes / 2**30:.0f} GiB"
    return Device("cuda", number, f"{device.name}{size}", device.uuid)


def _by_uuid(uuid: str, found: Sequence[Gpu], visible: Sequence[Visible]) -> Device:
    """Find a device; a MIG device is usable if CUDA_VISIBLE_DEVICES names it or its GPU."""
    for number, device in enumerate(visible):
        if uuid == (device.part or device.gpu).uuid:
            return _device(visible, number)
        for part in device.gpu.mig_devices if device.part is None else ():
            if uuid == part.uuid:
                return _make_device(number, part)
    if uuid in _uuids(found):
        raise DeviceUnavailable("CUDA_VISIBLE_DEVICES does not name it")
    raise DeviceUnavailable(
        f"no device has this UUID; the NVIDIA driver sees {', '.join(_uuids(found)) or 'none'}"
    )


def _uuids(found: Sequence[Gpu]) -> Iterator[str]:
    for gpu in found:
        yield gpu.uuid
        yield from (part.uuid for part in gpu.mig_devices)
