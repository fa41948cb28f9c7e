"""Permission to register, list and unregister memory of a GPU."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cuda_ipc_puppets import PuppetCuda, PuppetGpus, handle_of

from stoker.errors import Forbidden, MalformedBody, NotFound, NotSupported, RegionTaken, Unauthorized
from stoker.gateway.http.requests import Requester
from stoker.gateway.protocols.shared_memory import (
    cuda_status,
    regions_to_change,
    register,
    unregister_cuda,
)
from stoker.gateway.regions.memory import CudaDevices
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import CudaLocation, RegionTable
from stoker.gpu.cuda_ipc import CudaIpc
from stoker.keys.callers import DEFAULT

KEY, ADMIN, NOBODY = b"Bearer key", b"Bearer admin", b""
NEAR, FAR = "127.0.0.1", "10.0.0.1"


def gateway_with(regions: Regions | None) -> Any:
    """A gateway with a service, whose key is `key`, and the admin key `admin`."""
    service = SimpleNamespace(access=SimpleNamespace(holder=lambda given: DEFAULT if given == KEY else None))
    service.access.refusal = lambda *_: Unauthorized("no key")
    callers = SimpleNamespace(open=False, allows=lambda given: given == ADMIN)
    return SimpleNamespace(
        settings=SimpleNamespace(metadata_need_key=True),
        directory=SimpleNamespace(all_services=[service]),
        administration=SimpleNamespace(access=SimpleNamespace(refusal=None, callers=callers)),
        regions=regions,
    )


@pytest.fixture
def regions() -> Iterator[Regions]:
    """Regions that take the admin key, with an allocation of 64 bytes that may be registered."""
    gpus, fd = PuppetGpus(), os.memfd_create("regions")
    gpus.allocate("a", 64)
    cuda = PuppetCuda(gpus)
    yield Regions(RegionTable(fd), needs_admin=True, cuda=CudaDevices(lambda: CudaIpc(cuda, cuda)))
    os.close(fd)


def add(regions: Regions) -> None:
    """Register a region."""
    location = CudaLocation(base64.b64encode(handle_of("a")).decode(), 0)
    regions.register_cuda("r", regions.cuda.open(location, 64))


def test_with_the_admin_key_alone(regions: Regions) -> None:
    """Only its holder registers and unregisters; others may list regions and unregister missing ones."""
    gateway, holder, admin = gateway_with(regions), Requester(KEY, NEAR), Requester(ADMIN, NEAR)
    unregister_cuda(gateway, holder, None)
    for given in (KEY, NOBODY):
        with pytest.raises(Unauthorized, match="admin key"):
            regions_to_change(gateway, Requester(given, NEAR))
    assert regions_to_change(gateway, admin) is regions
    add(regions)
    assert [entry["name"] for entry in cuda_status(gateway, holder, "r")] == ["r"]
    with pytest.raises(Unauthorized):
        cuda_status(gateway, Requester(NOBODY, NEAR), None)
    for name in ("r", None):
        with pytest.raises(Unauthorized, match="admin key"):
            unregister_cuda(gateway, holder, name)
    with pytest.raises(Forbidden, match="Pages"):
        unregister_cuda(gateway, holder._replace(from_page=True), "r")
    assert regions.status(None, CudaLocation)
    unregister_cuda(gateway, admin, "r")
    assert regions.status(None, CudaLocation) == []


def test_on_another_machine_there_is_nothing(regions: Regions) -> None:
    """To see or to let go, as where shared memory is off; registering is refused."""
    add(regions)
    holder = Requester(KEY, FAR)
    for gateway in (gateway_with(regions), gateway_with(None)):
        assert cuda_status(gateway, holder, None) == []
        with pytest.raises(NotFound):
            cuda_status(gateway, holder, "r")
        unregister_cuda(gateway, holder, None)
        with pytest.raises((Forbidden, NotSupported)):
            regions_to_change(gateway, Requester(ADMIN, FAR))
    assert regions.status(None, CudaLocation)


@pytest.mark.anyio
async def test_invalid_cuda_region_is_refused_before_calling_cuda(regions: Regions) -> None:
    """Wrong handles, GPUs, sizes and taken names are refused before CUDA is called."""
    for handle, device_id, size_bytes in (
        (b"short", 0, 64),
        (handle_of("a"), -1, 64),
        (handle_of("a"), 1 << 16, 64),
        (handle_of("a"), 0, 0),
        (handle_of("a"), 0, 1 << 62),
    ):
        with pytest.raises(MalformedBody) as refused:
            await register(regions, "r", handle, device_id, size_bytes)
        # A region of a GPU begins with its allocation.
        assert "'offset'" not in str(refused.value)
    await register(regions, "r", handle_of("a"), 0, 64)
    with pytest.raises(RegionTaken):
        await register(regions, "r", b"\1" * 64, 0, 64)
