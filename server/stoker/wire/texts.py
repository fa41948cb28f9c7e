"""Texts as rows of tokens: of each text the number of its tokens, then their ids and segments (decision 71).

Hugging Face's library `tokenizers` reads texts without Python's interpreter lock. A `tokenizer.json` is data: it
chooses among components of the library, and cannot name code.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.errors import BodyTooLarge, InvalidInput, LoadFailed
from stoker.settings.text_input import TextInput
from stoker.system.durable import read_regular
from stoker.tensors import ModelTensors, TensorInfo

TEXT: Final = "text"
"""The name of the input that callers see."""
SEGMENT_BITS: Final = 24
"""A token of a row is `segment << SEGMENT_BITS | id`."""
_MOST_TOKENIZER_BYTES: Final = 256 << 20
_MOST_ROWS_BYTES: Final = 64 << 20
_MOST_TOKEN_CHARS: Final = 64
"""No more of a text is read than this for each token that the model takes; usual tokens have four characters."""
_PAIR: Final = 2


class UnusableTokenizer(LoadFailed):
    """A `tokenizer.json` cannot be used."""


class TokenRows(NamedTuple):
    """Texts as rows.

    Attributes:
        rows: `int32[texts, 1 + max_tokens]`.
        cut: How many texts were cut.
    """

    rows: np.ndarray
    cut: int


def text_tensors(outputs: Sequence[TensorInfo]) -> ModelTensors:
    """Return the tensors of a model that takes texts, as callers see them: strings, or pairs of strings."""
    text = TensorInfo(TEXT, "string", (-1,), any_rank=True, example='"How far is it?"')
    return ModelTensors((text,), tuple(outputs), batched=True)


class Tokenizing:
    """Makes rows of tokens of texts; any thread may use it.

    Attributes:
        pad_id: The token that fills up shorter texts in a batch.
    """

    def __init__(self, text: TextInput) -> None:
        """Load the tokenizer; raises UnusableTokenizer if its file is none."""
        # Stoker's own threads call it; the library would start as many as there are cores in each process.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from tokenizers import Tokenizer

        self._text = text
        try:
            self._tokenizer = Tokenizer.from_buffer(read_regular(text.tokenizer, _MOST_TOKENIZER_BYTES))
            padding = self._tokenizer.padding or {}
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(text.max_tokens)
        except BaseException as error:  # a panic of the library is no `Exception`
            raise UnusableTokenizer(f"{text.tokenizer} cannot be used: {error}") from error
        self.pad_id: int = padding.get("pad_id", 0) if text.pad_id is None else text.pad_id

    def find_largest_id(self) -> int:
        """Return the largest id of a token."""
        return max(self._tokenizer.get_vocab().values(), default=0)

    def check(self, texts: np.ndarray) -> None:
        """Raise an error for arrays other than `object[n]`, `object[n, 1]`, or pairs of texts, `object[n, 2]`."""
        if texts.shape[1:] not in ((), (1,), (_PAIR,)) or not texts.ndim:
            raise InvalidInput(f"Expected texts, or pairs of texts; got the shape {list(texts.shape)}.")
        most = _MOST_ROWS_BYTES // (4 + 4 * self._text.max_tokens)
        if len(texts) > most:
            raise BodyTooLarge(f"{len(texts)} texts are more than the {most} that are taken at once.")

    def encode(self, texts: np.ndarray, first: int = 0) -> TokenRows:
        """Encode texts that `check` accepts.

        Args:
            first: The place of the first text in its request, for messages.

        Raises:
            InvalidInput: One is no UTF-8, or is longer than the model takes where that is refused.
        """
        most_tokens = self._text.max_tokens
        rows = np.zeros((len(texts), 1 + most_tokens), np.int32)
        is_longer = np.zeros(len(texts), bool)
        is_pairs = texts.shape[1:] == (_PAIR,)
        inputs: list[Any] = []
        for place, parts in enumerate(texts.reshape(len(texts), -1).tolist()):
            try:
                read = [part.decode() for part in parts]
            except UnicodeDecodeError:
                raise InvalidInput(f"Text {first + place} is not UTF-8.") from None
            is_longer[place] = max(map(len, read)) > _MOST_TOKEN_CHARS * most_tokens
            read = [part[: _MOST_TOKEN_CHARS * most_tokens] for part in read]
            inputs.append(tuple(read) if is_pairs else read[0])
        try:
            # The fast way gives pairs no segments where the tokenizer has no post-processor.
            encode = self._tokenizer.encode_batch if is_pairs else self._tokenizer.encode_batch_fast
            encodings = encode(inputs)
        except BaseException as error:  # a panic of the library is no `Exception`
            raise RuntimeError(f"{self._text.tokenizer} fails on a text: {error}") from error
        for row, encoding in zip(rows, encodings, strict=True):
            row[0] = len(encoding.ids)
            row[1 : 1 + row[0]] = encoding.ids
            if is_pairs:
                row[1 : 1 + row[0]] |= np.array(encoding.type_ids, np.int32) << SEGMENT_BITS
        is_longer |= [bool(encoding.overflowing) for encoding in encodings]
        if self._text.longer == "refuse" and is_longer.any():
            raise InvalidInput(
                f"Text {first + int(is_longer.argmax())} has more than {most_tokens} tokens; send shorter ones."
            )
        return TokenRows(rows, int(is_longer.sum()))
