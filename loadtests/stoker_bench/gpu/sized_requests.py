"""Requests of any number of rows, without a copy of the rows for each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker_bench.generators.scoring_request import binary_description, binary_headers, random_rows
from stoker_bench.gpu.models import as_sent

if TYPE_CHECKING:
    from stoker_bench.gpu.server import GpuServer

__all__ = ["SizedRequests"]

DISTINCT_ROWS = 8
MAX_BODY_BYTES = 96 << 20
"""Somewhat less than the server's limit, of which the description takes a part."""


class SizedRequests:
    """Binary requests to one server.

    Args:
        server: Where they go.
        max_rows: Most rows of one, as far as the server takes such a body.
        seed: Of the sizes that `random` chooses.

    Attributes:
        max_rows: Most rows of one.
        template: A request to the same address.
    """

    def __init__(self, server: GpuServer, max_rows: int, seed: int = 1) -> None:
        model = server.model
        self._model = model
        self.max_rows = max(1, min(max_rows, MAX_BODY_BYTES // model.row_bytes))
        self._sizes = np.random.default_rng(seed)
        self._heads: dict[int, bytes] = {}
        rows = as_sent(random_rows(DISTINCT_ROWS, model.row_shape), model.wire_dtype)
        repeated: Any = np.resize(rows, (self.max_rows, *model.row_shape))
        self._rows = memoryview(repeated.reshape(-1).view(np.uint8))
        self.template = server.request(random_rows(1, model.row_shape))

    def of(self, rows: int) -> tuple[bytes, memoryview]:
        """Return the head and the rows of a request."""
        size = rows * self._model.row_bytes
        if rows not in self._heads:
            dtype = np.dtype(self._model.wire_dtype)
            description = binary_description(self._model.input_name, (rows, *self._model.row_shape), dtype)
            headers = {**self.template.headers, **binary_headers(description)}
            request = dataclasses.replace(self.template, headers=headers)
            self._heads[rows] = request.http_head(len(description) + size) + description
        return self._heads[rows], self._rows[:size]

    def random(self) -> tuple[bytes, memoryview]:
        """Return a request of 1 to `max_rows` rows, every number equally often."""
        return self.of(int(self._sizes.integers(1, self.max_rows, endpoint=True)))
