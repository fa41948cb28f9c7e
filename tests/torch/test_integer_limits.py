"""The ranges of a model's integers, found without an index out of range, which would break CUDA."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.torch.conftest import torch

from stoker.errors import InvalidInput
from stoker.runtimes.integer_limits import check_limits, checked_indices, find_limits
from stoker.tensors import TensorInfo

nn = torch.nn


class Words(nn.Module):
    """Embeddings of 100 words and 7 kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(100, 8), nn.Embedding(7, 8)

    def forward(self, ids: Any, kinds: Any) -> Any:
        return self.words(ids) + self.kinds(kinds)


class Picks(nn.Module):
    """Uses each operator of PyTorch with indices."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("table", torch.arange(50.0))

    def forward(self, ids: Any, kinds: Any) -> Any:
        flat = ids.reshape(-1)
        if self.way == "index":
            found = self.table[flat]
        elif self.way == "index_select":
            found = self.table.index_select(0, flat)
        elif self.way == "gather":
            found = self.table.gather(0, flat)
        else:
            found = torch.zeros(50).scatter_add(0, flat, torch.ones(len(flat)))
        return found.sum() + kinds


def ask(module: nn.Module, seen: list[int], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    seen.append(int(feeds["ids"].max()))
    try:
        with torch.inference_mode():
            return {"y": module(*map(torch.from_numpy, feeds.values())).numpy()}
    except IndexError as error:
        # In PyTorch's own words for the CPU the operator would have run, and the test fails.
        if "the table has" not in str(error):
            raise
        raise InvalidInput.refused_by_model(str(error)) from error


INPUTS = [TensorInfo("ids", "int64", (-1, 4)), TensorInfo("kinds", "int64", (-1, 4))]
REQUEST = {"ids": np.array([[3, 1, 2, 0]]), "kinds": np.array([[0, 1, 0, 1]])}
WHOLE = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)


def test_tables_limit_their_inputs() -> None:
    """Each input has the range of its own table, found in few runs."""
    seen: list[int] = []
    with checked_indices(torch):
        limits = find_limits(partial(ask, Words(), seen), INPUTS, REQUEST)
    assert limits == {"ids": (0, 99), "kinds": (0, 6)}
    assert len(seen) < 60


@pytest.mark.parametrize(
    ("way", "limits"),
    [("index", (-50, 49)), ("index_select", (0, 49)), ("gather", (0, 49)), ("scatter_add", (0, 49))],
)
def test_every_operator_with_indices_is_checked(way: str, limits: tuple[int, int]) -> None:
    """The check precedes the operator; numbers that are only added have the whole range."""
    with checked_indices(torch):
        found = find_limits(partial(ask, Picks(way), []), INPUTS, REQUEST)
    assert found == {"ids": limits, "kinds": WHOLE}


def test_exported_programs_are_checked_too(export: Callable[..., Path]) -> None:
    """They have the same operators."""
    ids = torch.tensor([[1, 2, 3, 4]] * 2)
    path = export(Words(), ids, ids.clone())
    module = torch.export.load(path).module()
    with checked_indices(torch):
        limits = find_limits(partial(ask, module, []), INPUTS, REQUEST)
    assert limits == {"ids": (0, 99), "kinds": (0, 6)}


def test_requests_out_of_range_are_refused() -> None:
    """The message has the input and its range."""
    limits = {"ids": (0, 99)}
    check_limits({"ids": np.array([0, 99])}, limits)
    check_limits({"ids": np.zeros((0, 4), int)}, limits)
    for bad in (-1, 100):
        with pytest.raises(InvalidInput, match="numbers of ids have to be from 0 to 99"):
            check_limits({"ids": np.array([3, bad])}, limits)
