"""Finds the tokenizer beside a model, and how many tokens it and the model take."""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.models.sources import ModelSource
from stoker.settings.files import settings_text
from stoker.settings.model import ModelSettings
from stoker.settings.text_input import MOST_TOKENS, TextInput, TextSettings
from stoker.system.extras import how_to_install

logger = logging.getLogger(__name__)

TOKENIZER: Final = "tokenizer.json"
_FRAMEWORKS: Final = ("onnx", "torch", "tensorflow")
_USUAL_TOKENS: Final = 512
_LIMITS: Final = {
    "tokenizer_config.json": "model_max_length",
    "config.json": "max_position_embeddings",
    "sentence_bert_config.json": "max_seq_length",
}
"""The files that limit the tokens of a text, and their keys."""
FILES: Final = (TOKENIZER, *_LIMITS)
"""The files that are read beside a model."""
_OFFSET_POSITIONS: Final = ("camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
"""The architectures whose first position is the one behind the padding token's number."""


def find_text_input(source: ModelSource, model_dir: Path, model: ModelSettings) -> TextInput | None:
    """Find how texts become the inputs of a model; None if it takes no texts.

    The tokenizer is in the model's folder, beside its file, or in `model_dir`.

    Raises:
        InvalidSettings: The operator has set it, and the tokenizer or the library is missing; or a file with a limit
            cannot be read.
    """
    name, path, settings = source.name, source.path, model.text
    if settings is False:
        return None
    # Exporters write the model into a folder beside the tokenizer.
    exported = (path.parent.parent,) if path.parent.name == "onnx" else ()
    folders = (path if path.is_dir() else path.parent, path.parent, model_dir, *exported)
    folder = next((folder for folder in folders if (folder / TOKENIZER).is_file()), None)
    problem = ""
    if source.framework not in _FRAMEWORKS or model.sequence is not None or model.pad:
        problem = f"text is for models of {', '.join(_FRAMEWORKS)} without the settings sequence and pad"
    elif folder is None:
        problem = f"text needs a {TOKENIZER} beside the model; there is none in {folders[0]}"
    elif find_spec("tokenizers") is None:
        problem = f"the library tokenizers is not installed; {how_to_install('text')}"
        logger.info("%s takes no texts, only numbers: %s", name, problem)
    if settings and problem:
        raise InvalidSettings(f"{name}: {problem}")
    if folder is None or problem:
        return None
    given = settings or TextSettings()
    files = {file: read_model_json(folder / file) or {} for file in _LIMITS}
    config = files["config.json"]
    pad_id = config.get("pad_token_id")
    pad_id = pad_id if isinstance(pad_id, int) and 0 <= pad_id < MOST_TOKENS else None
    found = {file: files[file].get(key) for file, key in _LIMITS.items()}
    if config.get("model_type") in _OFFSET_POSITIONS and isinstance(found["config.json"], int):
        found["config.json"] -= (pad_id or 0) + 1
    limits = [one for one in found.values() if isinstance(one, int | float) and 0 < one <= MOST_TOKENS]
    most = int(min(limits, default=_USUAL_TOKENS))
    if given.max_tokens is not None and limits and given.max_tokens > most:
        raise InvalidSettings(f"{name}: text has max_tokens {given.max_tokens}, and its files allow {most}")
    return TextInput(
        folder / TOKENIZER,
        given.max_tokens or most,
        given.longer,
        pad_id,
        settings is not None,
        _labels(config.get("id2label")),
    )


def _labels(by_number: Any) -> tuple[str, ...]:
    """Return the classes of a configuration; empty if they are not texts, numbered from 0."""
    if not isinstance(by_number, dict):
        return ()
    labels = [by_number.get(str(number)) for number in range(len(by_number))]
    return tuple(map(str, labels)) if all(isinstance(label, str) for label in labels) else ()


def read_model_json(file: Path, kind: type = dict) -> Any:
    """Return the object, or the list, in a JSON file of a model; None if there is no such file."""
    if not file.exists():
        return None
    try:
        # Some files say with a number of a hundred bits that there is no limit.
        content = json.loads(settings_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    if not isinstance(content, kind):
        raise InvalidSettings(f"{file} must hold a JSON {'list' if kind is list else 'object'}")
    return content
