"""OpenAI's form of embeddings, and Cohere's and Jina's form of reranking. Sans-I/O.

A request is decoded to texts for the model; its answer is encoded from the only output of the model.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import InvalidInput
from stoker.wire.json_bodies import dump, parse_document


class TextRequest(NamedTuple):
    """A decoded request.

    Attributes:
        texts: `object[n]`, or `object[n, 2]` of queries and documents.
        model: The model that it names; empty for none.
        encode: Returns the fields of the answer for the model's output, `[n, size]`, but for model and usage. A
            process can send it to another.
    """

    texts: np.ndarray
    model: str
    encode: Callable[[np.ndarray], dict[str, Any]]


def decode_embeddings(body: bytes) -> TextRequest:
    """Decode a request for embeddings."""
    document, model = _read(body)
    given = document.get("input")
    form, size = document.get("encoding_format"), _count(document, "dimensions")
    if form not in (None, "float", "base64"):
        raise InvalidInput('"encoding_format" must be float or base64.')
    texts = _texts([given] if isinstance(given, str) else given, '"input" must be a text or a list of texts')
    return TextRequest(texts, model, partial(_embeddings, size=size, is_binary=form == "base64"))


def decode_rerank(body: bytes) -> TextRequest:
    """Decode a request to order documents by their relevance to a query."""
    document, model = _read(body)
    query, given, top = document.get("query"), document.get("documents"), _count(document, "top_n")
    listed = given if isinstance(given, list) else []
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in listed]
    encoded = _texts(texts and [query, *texts], '"query" must be a text, and "documents" a list of texts')
    pairs = np.stack((encoded[:1].repeat(len(texts)), encoded[1:]), axis=1)
    returned = texts if document.get("return_documents") else None
    return TextRequest(pairs, model, partial(_ranks, top=top, documents=returned))


def encode_answer(
    encode: Callable[[np.ndarray], dict[str, Any]], model: str, outputs: Mapping[str, np.ndarray], tokens: int
) -> bytes:
    """Return the JSON of an answer; `encode` is that of its request."""
    flat = [array for array in outputs.values() if array.ndim <= 2]  # a vector or number for each text
    if not flat or flat[0].dtype == object:
        raise InvalidInput(f"{model} gives no vector or number for each text.")
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dump({**encode(flat[0].reshape(len(flat[0]), -1)), "model": model, "usage": usage})


def _embeddings(output: np.ndarray, *, size: int | None, is_binary: bool) -> dict[str, Any]:
    vectors = output.astype("<f4")
    if size is not None:
        if size > vectors.shape[1]:
            raise InvalidInput(f'"dimensions" is {size}, and the model has {vectors.shape[1]}.')
        vectors = np.ascontiguousarray(vectors[:, :size])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
    listed = (base64.b64encode(vector.tobytes()).decode() for vector in vectors) if is_binary else vectors
    data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(listed)]
    return {"object": "list", "data": data}


def _ranks(output: np.ndarray, *, top: int | None, documents: Sequence[str] | None) -> dict[str, Any]:
    if output.shape[1] != 1:
        raise InvalidInput(f"The model gives {output.shape[1]} numbers for a pair of texts, and no score.")
    scores = 1 / (1 + np.exp(-output[:, 0].astype(np.float64).clip(-700, 700)))
    results = [
        {"index": place, "relevance_score": scores[place]}
        | ({} if documents is None else {"document": {"text": documents[place]}})
        for place in np.argsort(-scores, kind="stable").tolist()
    ]
    return {"object": "list", "results": results[:top]}


def _read(body: bytes) -> tuple[dict[str, Any], str]:
    """Return a request, and the model that it names."""
    document = parse_document(body)
    if not isinstance(document, dict):
        raise InvalidInput("The body must be a JSON object.")
    return document, str(document.get("model") or "")


def _count(document: dict[str, Any], name: str) -> int | None:
    count: int | None = document.get(name)
    if count is not None and (type(count) is not int or count < 1):
        raise InvalidInput(f'"{name}" must be a whole number above 0.')
    return count


def _texts(texts: Any, rule: str) -> np.ndarray:
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{rule}; tokens are not taken.")
    return np.array([text.encode() for text in texts], object)
