"""`ts.torch_handler.image_classifier`: the likeliest classes of an image."""

from __future__ import annotations

from typing import Any

from stoker_torchserve.ts.handler_utils.timer import timed
from stoker_torchserve.ts.torch_handler.vision_handler import (
    ImageProcessing,
    VisionHandler,
    scaled_and_normalised,
)
from stoker_torchserve.ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """Answers with the probabilities of the `topk` likeliest classes, by their names."""

    topk = 5
    image_processing = ImageProcessing(scaled_and_normalised)

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes an answer has."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """Return how many classes an answer has."""
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[dict[str, float]]:
        """Return the likeliest classes of each row of logits."""
        import torch

        probabilities, classes = torch.topk(torch.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
