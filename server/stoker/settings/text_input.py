"""The text input of a model: the tokenizer that makes its inputs, and how long a text may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from stoker.settings.readers import choice_of, number_of, read_members

Longer = Literal["cut", "refuse"]

MOST_TOKENS: Final = 1 << 17
_READERS: Final = {"max_tokens": number_of(int, 8, MOST_TOKENS), "longer": choice_of("cut", "refuse")}


@dataclass(frozen=True, slots=True)
class TextSettings:
    """The settings of an operator for the texts of a model.

    Attributes:
        max_tokens: The most tokens of a text; None for as many as the tokenizer and the model take.
        longer: Whether longer texts are cut or refused.
    """

    max_tokens: int | None = None
    longer: Longer = "cut"


@dataclass(frozen=True, slots=True)
class TextInput:
    """The text input of a model.

    Attributes:
        tokenizer: A `tokenizer.json` of Hugging Face's library `tokenizers`.
        max_tokens: The most tokens of a text, with those that the tokenizer adds.
        pad_id: The token that fills up shorter texts in a batch; None for that of the tokenizer.
        is_required: Whether the operator has set it: then a model that cannot take texts is not served.
        labels: The classes of a classifier, in the order of its scores; empty if it has none.
    """

    tokenizer: Path
    max_tokens: int
    longer: Longer = "cut"
    pad_id: int | None = None
    is_required: bool = False
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        longer = "cut" if self.longer == "cut" else "refused"
        return f"up to {self.max_tokens} tokens, longer ones are {longer}"


def read_text_settings(value: Any) -> TextSettings | Literal[False]:
    """Read a mapping, a text such as `max_tokens=256,longer=refuse`, or false for no text input."""
    if isinstance(value, TextSettings) or value is False:
        return value
    if isinstance(value, str):
        if value == "off":
            return False
        pairs = (item.partition("=") for item in value.split(","))
        value = {key.strip(): given.strip() for key, _, given in pairs}
    if not isinstance(value, Mapping):
        raise ValueError(f"must hold {' and '.join(_READERS)} by name, or be off")
    return TextSettings(**read_members(value, _READERS))
