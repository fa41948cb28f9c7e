"""The lines of a training about its devices."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tensorflow


def test_each_gpu_is_described_by_name_and_compute_capability(monkeypatch):
    """One line a device; a GPU of unknown capability has its name alone."""
    from stoker_training import frameworks

    details = {"GPU:0": {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}, "GPU:1": {}}
    monkeypatch.setattr(frameworks.tf.config, "list_physical_devices", lambda _: list(details))
    monkeypatch.setattr(frameworks.tf.config.experimental, "get_device_details", details.get)
    assert frameworks.describe_devices(frameworks.found_gpus()) == [
        "Device GPU:0: NVIDIA H200, compute capability 9.0.",
        "Device GPU:1: GPU.",
    ]


def test_a_machine_without_gpus_says_so():
    """The line is `CPU only`."""
    from stoker_training import frameworks

    (line,) = frameworks.describe_devices([])
    assert line.startswith("Devices: CPU only (")
