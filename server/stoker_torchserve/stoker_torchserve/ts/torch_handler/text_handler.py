"""`ts.torch_handler.text_handler`: what the handlers of texts share."""

from __future__ import annotations

import html
import re
import string
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.runtimes.torch.files import load_weights
from stoker_torchserve.ts.context import Context
from stoker_torchserve.ts.torch_handler.base_handler import BaseHandler

_VOCABULARY: Final = "source_vocab.pt"
_UNKNOWN: Final = "<unk>"
_TAG: Final = re.compile(r"<[^>]*>")
_ENTITY: Final = re.compile(r"&(#\d+|#x[0-9a-f]+|[a-z0-9]+);", re.IGNORECASE)
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_SHORT: Final = {
    "ain't": "is not",
    "can't": "cannot",
    "let's": "let us",
    "shan't": "shall not",
    "won't": "will not",
    "y'all": "you all",
}
"""Contractions that no rule makes long."""
_ENDINGS: Final = {
    "n't": " not",
    "'re": " are",
    "'ve": " have",
    "'ll": " will",
    "'m": " am",
    "'d": " would",
}
_CONTRACTION: Final = re.compile(
    rf"\b({'|'.join(_SHORT)})\b|(?<=\w)({'|'.join(_ENDINGS)})\b|\b(it|he|she|that|there|what|where|who|how)'s\b",
    re.IGNORECASE,
)


class TextHandler(BaseHandler):
    """A handler of texts, with the numbers of words in `source_vocab.pt`: a dict that `torch.save` has written."""

    # Parts of explanations.
    get_word_token = summarize_attributions = BaseHandler.get_insights

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Mapping[str, int] = {}

    def initialize(self, context: Context) -> None:
        """Load the model, and the numbers of words.

        Raises:
            RuntimeError: There is no vocabulary, or it is no dict of numbers.
        """
        super().initialize(context)
        self.initialized = False
        named = self.manifest["model"].get("sourceVocab")
        path = named or self.get_source_vocab_path(context)
        vocabulary = load_weights(Path(path), "cpu")
        if not isinstance(vocabulary, dict):
            raise RuntimeError(
                f"{Path(path).name} of the archive has to hold a dict with the number of each word"
            )
        self.source_vocab = vocabulary
        self.initialized = True

    def get_source_vocab_path(self, ctx: Context) -> str:
        """Return the path of `source_vocab.pt`.

        Raises:
            RuntimeError: The archive has no such file.
        """
        path = Path(ctx.system_properties["model_dir"]) / _VOCABULARY
        if not path.is_file():
            raise RuntimeError(f"the archive has no {_VOCABULARY}, with the number of each word")
        return str(path)

    def get_word_number(self, word: str) -> int:
        """Return the number of a word; of one that the vocabulary lacks, that of `<unk>`, or 0."""
        return self.source_vocab.get(word, self.source_vocab.get(_UNKNOWN, 0))

    def _remove_html_tags(self, text: str) -> str:
        return _ENTITY.sub(
            lambda found: "" if html.unescape(found[0]) != found[0] else found[0], _TAG.sub("", text)
        )

    def _expand_contractions(self, text: str) -> str:
        return _CONTRACTION.sub(_expanded, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(str.maketrans("", "", string.punctuation))

    def _tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def _expanded(found: re.Match[str]) -> str:
    if found[1]:
        long = _SHORT[found[1].lower()]
        return long.capitalize() if found[1][0].isupper() else long
    return _ENDINGS[found[2].lower()] if found[2] else f"{found[3]} is"
