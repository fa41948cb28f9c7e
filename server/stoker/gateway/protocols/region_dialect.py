"""Infer requests whose tensors may be in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.gateway.protocols.infer_dialect import (
    InferDialect,
    codec_of,
    submit_request,
    tensors_of,
    write_answer,
)
from stoker.gateway.regions.outputs import Places
from stoker.gateway.regions.regions import Reader, Regions
from stoker.wire.oip_codec import InferCodec

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.wire.envelope import RequestHead

__all__ = ["RegionDialect"]


class RegionDialect(InferDialect):
    """Infer requests that may refer to regions of shared memory; see `InferDialect`."""

    __slots__ = ("_regions",)

    def __init__(self, json_bytes: int | None, regions: Regions) -> None:
        """Create it for this `Inference-Header-Content-Length`, with these regions."""
        super().__init__(json_bytes)
        self._regions = regions

    @classmethod
    def beside(cls, plain: InferDialect, regions: Regions) -> RegionDialect:
        """The dialect like this one, but with regions."""
        return cls(plain.json_bytes, regions)

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that decodes long JSON has no access to regions.
        return InferDialect, (self._json_bytes,)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the request and queue its tensors."""
        del head
        codec = codec_of(call.service)
        request = codec.decode(body, self._json_bytes, Reader(self._regions, call.service.max_body_bytes))
        places = Places.of(self._regions, request, batched=tensors_of(call.service).batched)
        call.write = (
            partial(write_answer, codec, request) if places is None else partial(_write, codec, places)
        )
        submit_request(call, exchange, request)


def _write(codec: InferCodec, places: Places, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
    """Write outputs into their regions, and encode the others."""
    return write_answer(codec, places.write(outputs), outputs)
