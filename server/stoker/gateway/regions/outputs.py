"""Outputs that are written into regions of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stoker.errors import InvalidInput
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import Registration
from stoker.wire.oip_answers import classified
from stoker.wire.oip_requests import InferRequest, RegionOutput
from stoker.wire.oip_tensors import to_raw

__all__ = ["Places"]


class Places:
    """Where the outputs of one request are written."""

    __slots__ = ("_batched", "_regions", "_registered", "_request")

    def __init__(
        self,
        regions: Regions,
        request: InferRequest,
        registered: Mapping[str, Registration],
        *,
        batched: bool,
    ) -> None:
        """Made by `of`."""
        self._regions, self._batched, self._registered = regions, batched, registered
        # Without the inputs: they are as large as the answer, and have been copied.
        self._request = replace(request, inputs={})

    @classmethod
    def of(cls, regions: Regions, request: InferRequest, *, batched: bool) -> Places | None:
        """The destinations of a request, checked before it runs; None if its outputs name no regions.

        Args:
            regions: The regions.
            request: The request.
            batched: Whether the first axis of its outputs is the batch.

        Raises:
            InvalidInput: A region is unknown, or does not have the part.
        """
        registered = {
            wanted.name: regions.check(wanted.span)
            for wanted in request.wanted
            if isinstance(wanted, RegionOutput)
        }
        return cls(regions, request, registered, batched=batched) if registered else None

    def write(self, outputs: Mapping[str, np.ndarray]) -> InferRequest:
        """Write the outputs; returns the request without its inputs, which is what the rest of the answer needs.

        Raises:
            InvalidInput: An output does not fit, in which case none has been written; or a region has been removed.
        """
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
