"""`stoker devices`: list the devices of this machine, and what can use them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from stoker.commands.terminal import add_json_argument, note, print_json
from stoker.gpu.probes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.gpu.devices import FoundDevice, Survey


_COLUMN: Final = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Each runtime tries each GPU in a process of its own, which takes some seconds. The name before a device, or "
        "its UUID, is what --device of stoker serve takes."
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """List the devices; a machine without a GPU is no failure."""
    from stoker.gpu.devices import survey

    found = survey(note)
    if args.json:
        print_json(found.to_json())
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(found)))
    return 0


def _lines(found: Survey) -> Iterator[str]:
    if found.driver is not None:
        version, cuda = found.driver.version or "of unknown version", found.driver.cuda or "unknown"
        yield _named("driver", f"NVIDIA {version}, for CUDA up to {cuda}")
    if found.no_gpu:
        yield _named("no GPU", found.no_gpu)
    for device in found.devices:
        yield from _device_lines(device)


def _device_lines(device: FoundDevice) -> Iterator[str]:
    yield _named("  MIG" if device.kind == "mig" else device.setting or "GPU", device.name)
    if device.note:
        yield _named("", f"cannot be used as it is: {device.note}")
    if device.uuid:
        yield _named("", device.uuid)
    facts = _facts(device)
    if facts:
        yield _named("", ", ".join(facts))
    for runtime, problem in device.problems.items():
        # In brackets is what it uses of a GPU.
        name = RUNTIMES[runtime].partition(" (" if device.kind == "cpu" else "\n")[0]
        yield _named("", f"{name}: {problem or 'can use it'}")


def _facts(device: FoundDevice) -> list[str]:
    facts = []
    if device.compute_capability is not None:
        facts.append(f"compute capability {device.compute_capability}")
    if device.pci_bus is not None:
        facts.append(f"PCI bus {device.pci_bus}")
    if device.memory_total_bytes is not None:
        free = device.memory_free_bytes
        of = "" if free is None else f", {free / 2**30:.1f} GiB free"
        facts.append(f"{device.memory_total_bytes / 2**30:.1f} GiB memory{of}")
    return facts


def _named(name: str, text: str) -> str:
    return f"{name:<{_COLUMN}} {text}"
