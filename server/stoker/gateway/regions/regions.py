"""The regions of shared memory that callers have registered, as a frontend uses them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

import numpy as np

from stoker.errors import BodyTooLarge, Forbidden, InvalidInput, MalformedBody, NotFound, RegionTaken, quoted
from stoker.gateway.regions.memory import CudaDevices, CudaMemory, OpenMemory, file_of
from stoker.gateway.regions.table import CudaLocation, FileLocation, Location, RegionTable, Registration
from stoker.wire.oip_requests import InferRequest, RegionOutput
from stoker.wire.oip_responses import classified
from stoker.wire.oip_tensors import RegionSpan, to_raw

MAX_REGIONS: Final = 512
"""Each frontend that has used a region keeps its file open."""
_MAX_NAME_BYTES: Final = 256
_MOST: Final = 1 << 62


def is_local(address: str) -> bool:
    """Whether a peer with this address is on this machine."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback


_Memory = OpenMemory | CudaMemory
"""A caller's memory that this process has open, on the host or on a GPU."""


class Regions:
    """The regions that are registered with the server, and those that this frontend has open.

    Args:
        anywhere: Whether callers on other machines may use regions.
    """

    def __init__(
        self,
        table: RegionTable,
        *,
        needs_admin: bool,
        anywhere: bool = False,
        cuda: CudaDevices | None = None,
    ) -> None:
        self.needs_admin, self.anywhere = needs_admin, anywhere
        self.cuda = CudaDevices() if cuda is None else cuda
        self._table = table
        self._open: dict[int, _Memory] = {}

    def serves(self, address: str) -> bool:
        """Whether a peer with this address may use regions."""
        return self.anywhere or is_local(address)

    def check_peer(self, address: str) -> None:
        """Refuse a peer that may not use regions."""
        if not self.serves(address):
            raise Forbidden(
                "Shared memory is for callers on the server's own machine, over its loopback address."
            )

    def register(self, name: str, key: str, offset_bytes: int, size_bytes: int) -> None:
        """Register a region."""
        self.check_new(name, size_bytes, offset_bytes)
        memory = OpenMemory(key)
        has_bytes = memory.size_bytes
        if offset_bytes + size_bytes > has_bytes:
            raise InvalidInput(
                f"failed to register shared memory region {quoted(name)}: it would end at byte "
                f"{offset_bytes + size_bytes}, and {quoted(key)} has {has_bytes}"
            )
        # Closed until it is used: more regions may be registered than this process may have open.
        self._add(name, size_bytes, FileLocation(key, offset_bytes, memory.device, memory.inode))

    def register_cuda(self, name: str, memory: CudaMemory) -> None:
        """Register a region on a GPU that `CudaDevices.open` has opened."""
        self.check_new(name, memory.size_bytes)
        self._open[self._add(name, memory.size_bytes, memory.location)] = memory

    def check_new(self, name: str, size_bytes: int, offset_bytes: int = 0) -> None:
        """Refuse a region that cannot be registered, whatever memory it is."""
        if not 0 < len(name.encode(errors="replace")) <= _MAX_NAME_BYTES:
            raise MalformedBody(f"the name of a shared memory region has 1 to {_MAX_NAME_BYTES} bytes")
        if not 0 < size_bytes < _MOST:
            raise MalformedBody(f"shared memory region {quoted(name)} needs 'byte_size' > 0 and < 2^62")
        if not 0 <= offset_bytes < _MOST:
            raise MalformedBody(f"shared memory region {quoted(name)} needs 'offset' >= 0 and < 2^62")
        self.remove_gone()
        if name in self._table.registered:
            raise _name_taken(name)

    def _add(self, name: str, size_bytes: int, location: Location) -> int:
        numbers = []

        def add(registered: dict[str, Registration], number: int) -> None:
            if name in registered:
                raise _name_taken(name)
            if len(registered) >= MAX_REGIONS:
                raise RegionTaken(f"there are {MAX_REGIONS} shared memory regions: unregister some")
            registered[name] = Registration(number, name, size_bytes, location)
            numbers.append(number)

        self._table.change(add)
        return numbers[0]

    def unregister(self, name: str | None, kind: type[Location] = FileLocation) -> None:
        """Unregister a region, or all of its kind; a region that is not registered is no error."""
        self._remove(lambda entry: isinstance(entry.location, kind) and name in (None, entry.name))

    def status(self, name: str | None, kind: type[Location] = FileLocation) -> list[dict[str, Any]]:
        """Return the registered regions of a kind, or one of them, in the form of the protocol."""
        self.remove_gone()
        found = [
            {"name": entry.name, **entry.location.described, "byte_size": entry.size_bytes}
            for entry in self._table.registered.values()
            if isinstance(entry.location, kind) and name in (None, entry.name)
        ]
        if name is not None and not found:
            word = "system" if kind is FileLocation else "cuda"
            raise NotFound(f"Unable to find {word} shared memory region: {quoted(name)}")
        return found

    def cold_devices(self) -> set[int]:
        """Return the GPUs with registered regions that this process has not used yet; each is returned once."""
        return self.cuda.cold(
            {
                entry.location.device_id
                for entry in self._table.registered.values()
                if isinstance(entry.location, CudaLocation)
            }
        )

    def remove_gone(self) -> None:
        """Unregister regions whose owners have removed them; called once a second.

        Nobody can open memory without a name, and this server would keep it allocated.
        """
        gone = {entry.number for entry in self._table.registered.values() if not _is_there(entry)}
        self._remove(lambda entry: entry.number in gone)

    def read(self, span: RegionSpan) -> memoryview:
        """Return a copy of a part of a region."""
        entry, memory = self._find(span)
        content = memory.read(entry.location.offset_bytes + span.offset_bytes, span.size_bytes)
        if content is None:
            raise _cut_short(span)
        return content

    def check(self, span: RegionSpan) -> Registration:
        """Return the registration of a region that has this part."""
        return self._find(span)[0]

    def write(self, span: RegionSpan, content: memoryview, registration: Registration) -> None:
        """Write into a part of a region.

        Args:
            registration: The result of `check` when the request came: a region that was registered later under the
                same name is not written.
        """
        entry, memory = self._find(span)
        if entry.number != registration.number:
            raise _unknown(span)
        try:
            to_row = memory.write(entry.location.offset_bytes + span.offset_bytes, content)
        except OSError as error:
            raise InvalidInput(
                f"Unable to write shared memory region {quoted(span.region)}: {os.strerror(error.errno or 0)}"
            ) from None
        if not to_row:
            raise _cut_short(span)

    def _find(self, span: RegionSpan) -> tuple[Registration, _Memory]:
        entry = self._table.registered.get(span.region)
        if entry is None:
            raise _unknown(span)
        if span.offset_bytes + span.size_bytes > entry.size_bytes:
            raise InvalidInput(
                f"Invalid offset + byte size for shared memory region: {quoted(span.region)}: "
                f"it has {entry.size_bytes} bytes"
            )
        memory = self._open.get(entry.number) or self._open_registered(entry)
        if memory is None or not memory.linked:
            self._remove(lambda registered: registered.number == entry.number)
            raise _unknown(span)
        return entry, memory

    def _open_registered(self, entry: Registration) -> _Memory | None:
        """The memory of a region that another frontend has registered.

        None if it is not the registered file any more.
        """
        memory: _Memory
        if isinstance(entry.location, CudaLocation):
            memory = self.cuda.open(entry.location, entry.size_bytes)
        else:
            memory = OpenMemory(entry.location.key)
            # Other shared memory may have been created under this name since the registration.
            if (memory.device, memory.inode) != (entry.location.device, entry.location.inode):
                return None
        self._open[entry.number] = memory
        return memory

    def _remove(self, is_removed: Callable[[Registration], bool]) -> None:
        """Remove registrations, and close all memory that is not registered any more."""

        def remove(registered: dict[str, Registration], _: int) -> None:
            for entry in filter(is_removed, list(registered.values())):
                del registered[entry.name]

        if any(map(is_removed, self._table.registered.values())):
            self._table.change(remove)
        held = {entry.number for entry in self._table.registered.values()}
        for number in self._open.keys() - held:
            del self._open[number]


class LimitedReader:
    """Reads the regions of one request, up to a total of `most_bytes`."""

    __slots__ = ("_left_bytes", "_most_bytes", "_regions")

    def __init__(self, regions: Regions, most_bytes: int) -> None:
        self._regions = regions
        self._left_bytes = self._most_bytes = most_bytes

    def read(self, span: RegionSpan) -> memoryview:
        """Return a copy of a part of a region."""
        self._left_bytes -= span.size_bytes
        if self._left_bytes < 0:
            raise BodyTooLarge(
                f"The inputs in shared memory are larger than {self._most_bytes / 2**20:.4g} MiB."
            )
        return self._regions.read(span)


def _is_there(entry: Registration) -> bool:
    location = entry.location
    if isinstance(location, CudaLocation):
        # CUDA does not report it.
        return True
    with contextlib.suppress(OSError):
        status = file_of(location.key).lstat()
        return (status.st_dev, status.st_ino) == (location.device, location.inode)
    return False


def _name_taken(name: str) -> RegionTaken:
    return RegionTaken(f"shared memory region {quoted(name)} already in manager")


def _unknown(span: RegionSpan) -> InvalidInput:
    return InvalidInput(f"Unable to find shared memory region: {quoted(span.region)}")


def _cut_short(span: RegionSpan) -> InvalidInput:
    return InvalidInput(
        f"Shared memory region {quoted(span.region)} has become shorter than it was registered"
    )


class OutputRegions:
    """The regions for the outputs of one request."""

    __slots__ = ("_batched", "_regions", "_registered", "_request")

    def __init__(
        self,
        regions: Regions,
        request: InferRequest,
        registered: Mapping[str, Registration],
        *,
        batched: bool,
    ) -> None:
        """Made by `find`."""
        self._regions, self._batched, self._registered = regions, batched, registered
        # Without the inputs: they are as large as the answer, and have been copied.
        self._request = replace(request, inputs={})

    @classmethod
    def find(cls, regions: Regions, request: InferRequest, *, batched: bool) -> OutputRegions | None:
        """Find the regions for a request's outputs, before it runs; None if its outputs name no regions."""
        registered = {
            wanted.name: regions.check(wanted.span)
            for wanted in request.wanted
            if isinstance(wanted, RegionOutput)
        }
        return cls(regions, request, registered, batched=batched) if registered else None

    def write(self, outputs: Mapping[str, np.ndarray]) -> InferRequest:
        """Write the outputs, none if one does not fit; return the request without its inputs, for the answer."""
        contents: list[tuple[RegionOutput, memoryview]] = []
        for wanted in self._request.wanted:
            if isinstance(wanted, RegionOutput):
                content = _bytes_of(classified(wanted, outputs[wanted.name], batched=self._batched))
                if len(content) > wanted.span.size_bytes:
                    raise InvalidInput(
                        f"shared memory size specified with the request for output '{wanted.name}' "
                        f"({wanted.span.size_bytes} bytes) should be at least {len(content)} bytes to hold the "
                        "results"
                    )
                contents.append((wanted, content))
        for wanted, content in contents:
            self._regions.write(wanted.span, content, self._registered[wanted.name])
        return self._request


def _bytes_of(array: np.ndarray) -> memoryview:
    if array.dtype == object:
        return memoryview(to_raw(array))
    if not array.size:
        # A view of this kind cannot be cast.
        return memoryview(b"")
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return plain.reshape(-1).view(np.uint8).data
