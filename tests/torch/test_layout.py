"""Images with their channels last."""

from typing import Any

import numpy as np
import pytest
from tests.torch.conftest import torch
from tests.torch.modules import model_of, rows, run_of

from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.torch.layout import choose_layout
from stoker.runtimes.torch.model import TorchModel

nn = torch.nn


class Images(nn.Module):
    """A convolution. With `flattens` it makes a view that fails if channels are last."""

    def __init__(self, *, flattens: bool = False) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)
        self.flattens = flattens

    def forward(self, x: Any) -> Any:
        maps = self.layer(x)
        return maps.view(-1, 5 * 36) if self.flattens else maps.mean((2, 3))


@pytest.mark.parametrize(
    ("times_ms", "flattens", "is_last"),
    [((10, 5), False, True), ((10, 9.8), False, False), ((10, 5), True, False)],
)
def test_channels_are_last_if_that_is_faster_and_works(
    times_ms: tuple[float, float], flattens: bool, is_last: bool
) -> None:
    """Otherwise the module keeps its layout."""
    module = Images(flattens=flattens).eval()
    now_ns = [0]
    sample = {"x": rows(2, 3, 8, 8)}
    expected = run_of(model_of(module))(sample)["y"]

    def timed(model: TorchModel) -> Run:
        run = run_of(model)
        last = module.layer.weight.is_contiguous(memory_format=torch.channels_last)

        def run_timed(feeds: Feeds) -> dict[str, np.ndarray]:
            now_ns[0] += int(1e6 * times_ms[last])
            return run(feeds)

        return run_timed

    model, words = choose_layout(torch, "net", timed, sample, model_of(module), lambda: now_ns[0])
    assert words == ("channels last (5.00 ms; first 10.00 ms)" if is_last else "")
    assert module.layer.weight.is_contiguous(memory_format=torch.channels_last) == is_last
    np.testing.assert_allclose(run_of(model)(sample)["y"], expected, rtol=1e-4, atol=1e-5)


def test_model_without_images_is_not_measured() -> None:
    """It keeps its layout."""
    model = model_of(nn.Linear(4, 3))
    chosen = choose_layout(torch, "net", lambda _: pytest.fail("timed"), {"x": rows(2, 4)}, model)
    assert chosen == (model, "")
