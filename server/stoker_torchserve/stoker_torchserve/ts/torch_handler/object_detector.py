"""`ts.torch_handler.object_detector`: the objects in an image, and where they are."""

from __future__ import annotations

from typing import Any

from stoker_torchserve.ts.torch_handler.vision_handler import ImageProcessing, VisionHandler


class ObjectDetector(VisionHandler):
    """Answers with a list of objects, each `{CLASS: [x1, y1, x2, y2], "score": …}`."""

    image_processing = ImageProcessing(lambda transforms: [transforms.ToTensor()])
    threshold = 0.5

    def postprocess(self, data: Any) -> list[list[dict[str, Any]]]:
        """Return the objects of each image whose score reaches the threshold."""
        return [self._objects(found) for found in data]

    def _objects(self, found: Any) -> list[dict[str, Any]]:
        good = found["scores"] >= self.threshold
        boxes, labels, scores = (found[name][good].tolist() for name in ("boxes", "labels", "scores"))
        names = [str(label) if self.mapping is None else self.mapping[str(label)] for label in labels]
        return [{name: box, "score": score} for name, box, score in zip(names, boxes, scores, strict=True)]
