"""OpenAI's form of embeddings, and Cohere's and Jina's form of reranking. Sans-I/O.

A request is decoded to texts for the model; its answer is encoded from the only output of the model.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import InvalidInput
from stoker.wire.json_bodies import dump, parse_document


class TextRequest(NamedTuple):
    """A decoded request.

    Attributes:
        texts: `object[n]`, or `object[n, 2]` of queries and documents.
        model: The model that it names; empty for none.
        encode: Returns the fields of the answer for the model's output, `[n, size]`, but for model and usage.
    """

    texts: np.ndarray
    model: str
    encode: Callable[[np.ndarray], dict[str, Any]]


def decode_embeddings(body: bytes) -> TextRequest:
    """Decode a request for embeddings."""
    document = _object(body)
    given = document.get("input")
    texts = [given] if isinstance(given, str) else given
    if not _are_texts(texts):
        raise InvalidInput('"input" must be a text or a list of texts; tokens are not taken.')
    form = document.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise InvalidInput('"encoding_format" must be float or base64.')
    size = document.get("dimensions")
    if size is not None and (type(size) is not int or size < 1):
        raise InvalidInput('"dimensions" must be a whole number above 0.')

    def encode(output: np.ndarray) -> dict[str, Any]:
        vectors = output.astype("<f4")
        if size is not None:
            if size > vectors.shape[1]:
                raise InvalidInput(f'"dimensions" is {size}, and the model has {vectors.shape[1]}.')
            vectors = np.ascontiguousarray(vectors[:, :size])
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        binary = (base64.b64encode(vector.tobytes()).decode() for vector in vectors)
        listed = enumerate(vectors if form != "base64" else binary)
        data = [{"object": "embedding", "index": index, "embedding": one} for index, one in listed]
        return {"object": "list", "data": data}

    return TextRequest(_strings(texts), _model(document), encode)


def decode_rerank(body: bytes) -> TextRequest:
    """Decode a request to order documents by their relevance to a query."""
    document = _object(body)
    query, given, top = document.get("query"), document.get("documents"), document.get("top_n")
    listed = given if isinstance(given, list) else []
    texts = [one.get("text") if isinstance(one, dict) else one for one in listed]
    if not isinstance(query, str) or not _are_texts(texts):
        raise InvalidInput('"query" must be a text, and "documents" a list of texts.')
    if top is not None and (type(top) is not int or top < 1):
        raise InvalidInput('"top_n" must be a whole number above 0.')

    def encode(output: np.ndarray) -> dict[str, Any]:
        if output.size != len(output):
            raise InvalidInput(
                f"The model gives {output.shape[1]} numbers for a pair of texts, and no score."
            )
        scores = 1 / (1 + np.exp(-output.reshape(-1).astype(np.float64).clip(-700, 700)))
        order = np.argsort(-scores, kind="stable").tolist()
        results = [{"index": place, "relevance_score": scores[place]} for place in order]
        if document.get("return_documents"):
            results = [{**one, "document": {"text": texts[one["index"]]}} for one in results]
        return {"object": "list", "results": results[:top]}

    return TextRequest(_strings([[query, text] for text in texts]), _model(document), encode)


def encode_answer(request: TextRequest, model: str, outputs: Mapping[str, np.ndarray], tokens: int) -> bytes:
    """Return the JSON of an answer."""
    flat = [array for array in outputs.values() if array.ndim <= 2]  # a vector or number for each text
    if not flat or flat[0].dtype == object:
        raise InvalidInput(f"{model} gives no vector or number for each text.")
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dump({**request.encode(flat[0].reshape(len(flat[0]), -1)), "model": model, "usage": usage})


def _object(body: bytes) -> dict[str, Any]:
    document = parse_document(body)
    if not isinstance(document, dict):
        raise InvalidInput("The body must be a JSON object.")
    return document


def _model(document: dict[str, Any]) -> str:
    name = document.get("model")
    return "" if name is None else str(name)


def _are_texts(texts: Any) -> bool:
    return isinstance(texts, list) and bool(texts) and all(isinstance(text, str) for text in texts)


def _strings(texts: Any) -> np.ndarray:
    array = np.array(texts, object)
    array.flat[:] = [text.encode() for text in array.flat]
    return array
