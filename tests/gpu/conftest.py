"""The GPU that the tests here need."""

import pytest

from stoker.deployment import Device
from stoker.errors import DeviceUnavailable
from stoker.gpu.child_probes import probe_in_child
from stoker.gpu.probes import preload_cuda
from stoker.gpu.selection import choose_device


@pytest.fixture(scope="session")
def first_gpu() -> Device:
    """The first GPU, which ONNX Runtime must be able to use; without one the test is skipped."""
    try:
        device, _ = choose_device("cuda:0", {"onnx"}, probe_in_child)
    except DeviceUnavailable as error:
        pytest.skip(reason=f"no GPU to test on: {error}")
    # Some tests open sessions in this process, as a device process does when it has tried the GPU.
    preload_cuda()
    return device
