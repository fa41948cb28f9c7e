"""`ts.torch_handler.image_segmenter`: the likeliest class of each pixel."""

from __future__ import annotations

from typing import Any

from stoker_torchserve.ts.torch_handler.vision_handler import (
    ImageProcessing,
    VisionHandler,
    scaled_and_normalised,
)


class ImageSegmenter(VisionHandler):
    """Answers with a class and its probability for each pixel: rows of columns of two numbers."""

    image_processing = ImageProcessing(scaled_and_normalised)

    def postprocess(self, data: Any) -> list[Any]:
        """Return class and probability of the pixels of each image, of the model's output `out`."""
        import torch

        values, classes = torch.softmax(data["out"], dim=1).max(dim=1)
        answers: list[Any] = torch.stack([classes.type(values.dtype), values], dim=3).tolist()
        return answers
