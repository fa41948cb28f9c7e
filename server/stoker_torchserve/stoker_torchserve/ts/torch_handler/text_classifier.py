"""`ts.torch_handler.text_classifier`: the classes of a text."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from stoker_torchserve.ts.torch_handler.text_handler import TextHandler
from stoker_torchserve.ts.utils.util import PredictionException, map_class_to_label


class TextClassifier(TextHandler):
    """Answers with the probabilities of all classes of a text, by their names.

    The model takes the numbers of the words and pairs of words of all texts as one int64 tensor, and the place where
    each text begins in it.
    """

    ngrams = 2

    def __init__(self) -> None:
        super().__init__()
        self._offsets: list[int] = [0]

    def preprocess(self, data: list[dict[str, Any]]) -> tuple[Any, list[str]]:
        """Return the numbers of the texts' words as a tensor, and the words.

        Texts are freed of HTML's tags, contractions, accents and punctuation, and in lower case.
        """
        import torch

        numbers: list[int] = []
        tokens: list[str] = []
        self._offsets = []
        for row in data:
            text = row.get("data") or row.get("body") or ""
            if isinstance(text, bytes | bytearray):
                try:
                    text = text.decode()
                except UnicodeDecodeError as error:
                    raise PredictionException(
                        f"the text is not UTF-8: {error}", HTTPStatus.BAD_REQUEST
                    ) from error
            words = self._words(str(text))
            tokens += words
            self._offsets.append(len(numbers))
            numbers += map(self.get_word_number, _with_ngrams(words, self.ngrams))
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.device), tokens

    def _words(self, text: str) -> list[str]:
        text = self._remove_html_tags(text).lower()
        text = self._remove_accented_characters(self._expand_contractions(text))
        return self._tokenize(self._remove_punctuation(text))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the logits of each text."""
        del args, kwargs
        import torch

        numbers, _ = data
        return super().inference(numbers, torch.as_tensor(self._offsets, device=self.device))

    def postprocess(self, data: Any) -> list[dict[str, float]]:
        """Return the probabilities of each text's classes."""
        import torch

        return map_class_to_label(torch.softmax(data, dim=1).tolist(), self.mapping)


def _with_ngrams(words: list[str], most: int) -> list[str]:
    """The words, then their pairs, and so on up to `most` words."""
    return [
        " ".join(words[start : start + count])
        for count in range(1, most + 1)
        for start in range(len(words) - count + 1)
    ]
