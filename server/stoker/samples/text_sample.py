"""Texts that a model is tried with: those of its sample, or sentences of several lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from stoker.deployment import Deployment
from stoker.samples.sample_files import read_sample
from stoker.settings.text_input import TextInput
from stoker.wire.texts import TEXT, Tokenizing, text_tensors

_SENTENCE: Final = "The harbour was quiet before the first ships of the morning came in, and nobody spoke. "
_TEXTS: Final = ("How far is it?", _SENTENCE, 3 * _SENTENCE, 10 * _SENTENCE)


def sample_texts(deployment: Deployment) -> np.ndarray:
    """Return the texts of the sample of a model, or those that are made up, as a request has them."""
    if deployment.sample_file is None:
        return np.array([one.encode() for one in _TEXTS], object)
    return read_sample(deployment.sample_file, text_tensors(()).inputs, model=deployment.name)[TEXT]


def find_text_sample(deployment: Deployment, text: TextInput) -> tuple[np.ndarray, str]:
    """Return rows of tokens for the tests and first batches of a model, and where their texts are from."""
    texts, tokenizing = sample_texts(deployment), Tokenizing(replace(text, longer="cut"))
    tokenizing.check(texts)
    file = deployment.sample_file
    return tokenizing.encode(texts).rows, "made-up texts" if file is None else file.name
