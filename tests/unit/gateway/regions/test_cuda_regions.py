"""Regions of a GPU's memory, on puppets of CUDA: two frontends, each with its own libraries and contexts."""

from __future__ import annotations

import base64
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cuda_ipc_puppets import PuppetCuda, PuppetGpus, handle_of

from stoker.errors import InvalidInput, MalformedBody, NotFound, NotSupported, Overloaded, RegionTaken
from stoker.gateway.regions.memory import CudaDevices
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import CudaLocation, RegionTable
from stoker.gpu.cuda_ipc import CudaIpc, CudaUnusable
from stoker.wire.oip_tensors import RegionSpan


class Machine:
    """GPUs, and two frontends with one table."""

    def __init__(self, devices: int = 1) -> None:
        self.gpus = PuppetGpus()
        self.loads = 0
        fd = os.memfd_create("regions")
        self._fds = (fd, os.dup(fd))
        self.cudas = [PuppetCuda(self.gpus, devices) for _ in range(2)]
        self.frontends = [
            Regions(RegionTable(each), needs_admin=False, cuda=CudaDevices(self._loader(cuda)))
            for each, cuda in zip(self._fds, self.cudas, strict=True)
        ]

    def close(self) -> None:
        """Close the descriptors of the table, which lives as long as a process."""
        for fd in self._fds:
            os.close(fd)

    def _loader(self, cuda: PuppetCuda) -> Callable[[], CudaIpc]:
        def load() -> CudaIpc:
            self.loads += 1
            return CudaIpc(cuda, cuda)

        return load

    def register(
        self, name: str, allocation: str, size_bytes: int, device: int = 0, frontend: int = 0
    ) -> None:
        """Register a region with one of the frontends."""
        regions = self.frontends[frontend]
        location = CudaLocation(base64.b64encode(handle_of(allocation)).decode(), device)
        regions.register_cuda(name, regions.cuda.open(location, size_bytes))


@pytest.fixture
def machine() -> Iterator[Machine]:
    """With an allocation of 64 bytes."""
    with closing(Machine()) as made:
        made.gpus.allocate("a", 64)
        yield made


def test_all_frontends_know_at_once(machine: Machine) -> None:
    """A frontend reads and writes regions that another registered; both close them once one unregisters."""
    ours, theirs = machine.frontends
    machine.register("r", "a", 32)
    assert bytes(theirs.read(RegionSpan("r", 2, 3))) == bytes([2, 3, 4])
    span = RegionSpan("r", 30, 2)
    theirs.write(span, memoryview(b"xy"), theirs.check(span))
    assert bytes(ours.read(RegionSpan("r", 29, 3))) == b"\x1dxy"
    assert [len(cuda.open) for cuda in machine.cudas] == [1, 1]
    assert ours.status(None, CudaLocation) == [{"name": "r", "device_id": 0, "byte_size": 32}]
    theirs.unregister("r", CudaLocation)
    with pytest.raises(InvalidInput, match="Unable to find"):
        ours.read(RegionSpan("r", 2, 3))
    ours.remove_gone()
    assert [len(cuda.open) for cuda in machine.cudas] == [0, 0]
    with pytest.raises(NotFound, match="cuda shared memory region: 'r'"):
        ours.status("r", CudaLocation)


def test_library_is_loaded_on_first_use(machine: Machine) -> None:
    """A server whose callers use system shared memory alone has no context on a GPU."""
    for regions in machine.frontends:
        assert regions.status(None, CudaLocation) == []
        regions.unregister(None, CudaLocation)
        regions.remove_gone()
        assert not regions.cold_devices()
    assert machine.loads == 0
    machine.register("r", "a", 64)
    assert (machine.loads, machine.cudas[0].contexts, machine.cudas[1].contexts) == (1, {0}, set())


def test_registration_makes_contexts_in_other_frontends_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """They make them beside their loops before the first request; a failure is logged and costs nothing else."""
    ours, theirs = machine.frontends
    machine.register("r", "a", 64)
    assert ours.cold_devices() == set()
    cold = theirs.cold_devices()
    assert cold == {0}
    theirs.cuda.prepare(cold)
    assert machine.cudas[1].contexts == {0}
    assert theirs.cold_devices() == set()
    machine.cudas[1].failing["cudaFree"] = 2
    theirs.cuda.prepare({0})
    assert (
        "GPU 0 that is registered cannot be used in this process: cudaFree: cudaErrorMemoryAllocation"
        in caplog.text
    )


def test_one_gpu_that_cannot_be_used_keeps_no_context_from_others(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the first request of another GPU would make all callers wait."""
    cuda = PuppetCuda(PuppetGpus(), devices=2)
    free = cuda.cudaFree
    cuda.cudaFree = lambda address: 2 if cuda.device == 0 else free(address)
    CudaDevices(lambda: CudaIpc(cuda, cuda)).prepare({0, 1})
    assert cuda.contexts == {1}
    assert "GPU 0 that is registered cannot be used" in caplog.text


@pytest.mark.parametrize(("offset", "size"), [(31, 2), (33, 0), (1 << 62, 1 << 62), (0, 33)])
def test_no_part_is_outside(machine: Machine, offset: int, size: int) -> None:
    """Neither to read nor to write, though the allocation is longer."""
    machine.register("r", "a", 32)
    for use in (machine.frontends[0].read, machine.frontends[1].check):
        with pytest.raises(InvalidInput, match="Invalid offset"):
            use(RegionSpan("r", offset, size))


NUMBERS = st.integers(0, 80) | st.sampled_from([(1 << 63) - 1, (1 << 64) - 8])


@given(
    size_bytes=st.integers(1, 64),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 1), NUMBERS, NUMBERS, st.integers(0, 90))),
)
def test_nothing_outside_a_region_is_touched(
    size_bytes: int, steps: list[tuple[bool, int, int, int, int]]
) -> None:
    """Reads and writes inside succeed, others are refused; bytes around the region stay unchanged."""
    machine = Machine()
    machine.gpus.allocate("a", 64)
    machine.gpus.allocate("b", 64)
    machine.register("r", "a", size_bytes)
    expected = bytearray(machine.gpus.content("a"))
    for writes, frontend, offset, size, given_bytes in steps:
        regions, span = machine.frontends[frontend], RegionSpan("r", offset, size)
        content = bytes([given_bytes]) * min(given_bytes, size)
        try:
            if writes:
                regions.write(span, memoryview(content), regions.check(span))
            else:
                assert bytes(regions.read(span)) == expected[offset : offset + size]
        except InvalidInput:
            assert offset + size > size_bytes
            continue
        assert offset + size <= size_bytes
        if writes:
            expected[offset : offset + len(content)] = content
        assert machine.gpus.content("a") == expected
    assert machine.gpus.content("b") == bytes(range(64))
    machine.close()


def test_memory_checks_bounds_itself(machine: Machine) -> None:
    """Also for callers that did not check the span before."""
    location = CudaLocation(base64.b64encode(handle_of("a")).decode(), 0)
    memory = machine.frontends[0].cuda.open(location, 32)
    for begin, size in ((-1, 1), (0, 33), (32, 1)):
        assert memory.read(begin, size) is None
        assert not memory.write(begin, memoryview(bytes(size)))
    assert memory.read(32, 0) is not None
    assert memory.write(32, memoryview(b""))


def test_an_allocation_that_is_shorter_is_refused_and_closed(machine: Machine) -> None:
    """The driver knows its size; CUDA itself would fail only when it copies."""
    with pytest.raises(InvalidInput, match="end at byte 65, and the allocation has 64"):
        machine.register("r", "a", 65)
    gc.collect()
    assert machine.cudas[0].open == {}
    assert machine.frontends[0].status(None, CudaLocation) == []


def test_name_is_unique_over_all_kinds_of_memory(machine: Machine) -> None:
    """Each kind lists and unregisters its own regions."""
    ours, _ = machine.frontends
    machine.register("r", "a", 32)
    for size in (0, -1):
        with pytest.raises(MalformedBody):
            ours.check_new("s", size)
    for refused in (lambda: ours.check_new("r", 1), lambda: machine.register("r", "a", 8, frontend=1)):
        with pytest.raises(RegionTaken):
            refused()
    machine.register("s", "a", 64)
    # The same memory twice: it is open as long as one of them is there.
    ours.unregister("r", CudaLocation)
    assert bytes(ours.read(RegionSpan("s", 63, 1))) == b"\x3f"
    assert ours.status(None) == []
    with pytest.raises(NotFound, match="system"):
        ours.status("s")
    ours.unregister(None)
    assert len(ours.status(None, CudaLocation)) == 1
    ours.unregister(None, CudaLocation)
    assert (ours.status(None, CudaLocation), machine.cudas[0].open) == ([], {})


def test_each_copy_is_on_the_region_s_own_gpu() -> None:
    """CUDA's current GPU belongs to the thread, and an earlier caller may have chosen another."""
    machine = Machine(devices=2)
    for device, name in enumerate(("a", "b")):
        machine.gpus.allocate(name, 8, device)
        machine.register(name, name, 8, device)
    for name in ("a", "b", "a"):
        for regions in machine.frontends:
            span = RegionSpan(name, 0, 1)
            regions.write(span, memoryview(name.encode()), regions.check(span))
            assert bytes(regions.read(span)) == name.encode()
    machine.close()


def test_cuda_error_is_reported_by_its_name(machine: Machine) -> None:
    """CUDA's errors become a caller's mistake, a missing feature or a passing overload, with their name."""
    ours, _ = machine.frontends
    with pytest.raises(InvalidInput, match="cudaIpcOpenMemHandle: cudaErrorInvalidResourceHandle"):
        machine.register("r", "unknown", 8)
    with pytest.raises(InvalidInput, match="cudaSetDevice: cudaErrorInvalidDevice"):
        machine.register("r", "a", 8, device=1)
    machine.cudas[0].failing["cuMemGetAddressRange_v2"] = 201
    with pytest.raises(InvalidInput, match="cuMemGetAddressRange: CUDA_ERROR_INVALID_CONTEXT"):
        machine.register("r", "a", 8)
    machine.cudas[0].failing = {"cudaFree": 2}
    with pytest.raises(Overloaded, match="cudaErrorMemoryAllocation"):
        machine.register("r", "a", 8)
    machine.cudas[0].failing = {"cudaSetDevice": 100}
    with pytest.raises(NotSupported, match="cudaErrorNoDevice; put the tensors into system shared memory"):
        machine.register("r", "a", 8)
    machine.cudas[0].failing = {}
    machine.register("r", "a", 8)
    machine.cudas[0].failing["cudaMemcpy"] = 700
    span = RegionSpan("r", 0, 4)
    with pytest.raises(InvalidInput, match=r"Unable to read.*cudaErrorIllegalAddress"):
        ours.read(span)
    with pytest.raises(InvalidInput, match=r"Unable to write.*cudaErrorIllegalAddress"):
        ours.write(span, memoryview(bytes(4)), ours.check(span))


def test_failed_close_is_logged(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """The region is unregistered all the same."""
    machine.register("r", "a", 8)
    machine.cudas[0].failing["cudaIpcCloseMemHandle"] = 1
    machine.frontends[0].unregister("r", CudaLocation)
    assert "cannot be closed: cudaIpcCloseMemHandle: cudaErrorInvalidValue" in caplog.text


def test_missing_library_is_named_in_the_refusal() -> None:
    """Each request looks for it again, since it may be installed later."""

    def load() -> CudaIpc:
        raise CudaUnusable("there is no NVIDIA driver: libcuda.so.1")

    devices = CudaDevices(load)
    for _ in range(2):
        with pytest.raises(
            NotSupported, match=r"cannot be used here: there is no NVIDIA driver: libcuda.so.1"
        ):
            devices.open(CudaLocation("", 0), 1)
