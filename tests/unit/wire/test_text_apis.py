"""OpenAI's, Cohere's and Jina's forms, without a server."""

import json

import numpy as np
import pytest

from stoker.errors import InvalidInput
from stoker.wire.text_apis import decode_embeddings, decode_rerank, encode_answer


def test_one_text_is_a_list_of_one() -> None:
    """As OpenAI's clients send it."""
    request = decode_embeddings(b'{"input": "a"}')
    assert (request.texts.tolist(), request.model) == ([b"a"], "")


def test_outputs_of_more_axes_are_passed_over() -> None:
    """The first output with a vector for each text is the embedding; one of numbers has vectors of one."""
    request = decode_embeddings(b'{"input": ["a", "b"]}')
    outputs = {"tokens": np.zeros((2, 3, 4)), "vector": np.array([[1.0, 2.0], [3.0, 4.0]])}
    answer = json.loads(encode_answer(request.encode, "m", outputs, 9))
    assert [one["embedding"] for one in answer["data"]] == [[1.0, 2.0], [3.0, 4.0]]
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    numbers = json.loads(encode_answer(request.encode, "m", {"n": np.array([1, 2])}, 0))
    assert [one["embedding"] for one in numbers["data"]] == [[1.0], [2.0]]
    with pytest.raises(InvalidInput, match="m gives no vector or number for each text"):
        encode_answer(request.encode, "m", {"tokens": np.zeros((2, 3, 4))}, 0)


def test_scores_of_any_size_are_between_0_and_1() -> None:
    """Extreme scores overflow nothing; equal ones keep the order of the documents."""
    request = decode_rerank(b'{"query": "q", "documents": ["a", {"text": "b"}, "c", "d"]}')
    assert request.texts.tolist() == [[b"q", b"a"], [b"q", b"b"], [b"q", b"c"], [b"q", b"d"]]
    with np.errstate(all="raise", under="ignore"):
        answer = json.loads(
            encode_answer(
                request.encode, "m", {"s": np.array([[-1e30], [0.0], [1e30], [0.0]], np.float32)}, 4
            )
        )
    assert [(one["index"], round(one["relevance_score"], 6)) for one in answer["results"]] == [
        (2, 1.0),
        (1, 0.5),
        (3, 0.5),
        (0, 0.0),
    ]


def test_fields_that_are_null_are_not_given() -> None:
    """As clients send what their callers leave open."""
    request = decode_embeddings(b'{"input": "a", "model": null, "encoding_format": null, "dimensions": null}')
    assert request.model == ""
    answer = json.loads(encode_answer(request.encode, "m", {"vector": np.array([[1.0, 2.0]])}, 1))
    assert answer["data"][0]["embedding"] == [1.0, 2.0]
    assert decode_rerank(b'{"query": "q", "documents": ["a"], "model": null, "top_n": null}').model == ""
