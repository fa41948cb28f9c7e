"""Texts through every protocol: each gives the model's answer to the tokens of the text alone."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from tests.http.raw_http import THE_APP, Answer, bearer, request, scoring
from tests.live_server import PRIMARY, LiveServer, free_port
from tests.text_models import WORDS, write_text_model
from tests.tiny_models import write_script

from stoker_client import Client

Tokenizer = pytest.importorskip("tokenizers", reason="the extra text is not installed").Tokenizer

GREATEST = """
import stoker

def init():
    pass

@stoker.batched(shape=(32,), dtype="float32")
def run(data):
    return data.argmax(axis=1)
"""
TEXTS = ["how far is it", "a quiet harbour " * 12, "stones", "é ß 漢 \U0001f525"]
LONG = "how far is it to the next town " * 40


@dataclass(frozen=True)
class Served:
    """A running server, and the folder of its model."""

    server: LiveServer
    grpc_port: int
    folder: Path

    def own_answers(self, *texts: Any) -> np.ndarray:
        """The answers of ONNX Runtime to each text, or pair of texts, alone."""
        session = onnxruntime.InferenceSession(self.folder / "model.onnx", providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.enable_truncation(64)
        answers = []
        for text in texts:
            found = tokenizer.encode(*([text] if isinstance(text, str) else text))
            feeds = zip(
                ("input_ids", "attention_mask", "token_type_ids"),
                (found.ids, found.attention_mask, found.type_ids),
                strict=True,
            )
            answers.append(session.run(None, {name: np.array([ids]) for name, ids in feeds})[0])
        return np.concatenate(answers)

    def score(self, data: Any, name: str = "m") -> Answer:
        """The answer at the scoring endpoint of a model."""
        path = f"/api/v1/service/{name}/score"
        with self.server.connect() as connection:
            return connection.ask(scoring(path, self.server.key, json.dumps({"data": data}).encode()))

    def by_both_paths(self, path: str, body: Any) -> list[Answer]:
        """The answers to JSON on the fast path, and through the app."""
        head = bearer(self.server.key)
        with self.server.connect() as connection:
            return [
                connection.ask(request("POST", path, [head, *further], json.dumps(body).encode()))
                for further in ([], THE_APP)
            ]

    def post(self, path: str, body: Any) -> Any:
        """The JSON that answers JSON."""
        with self.server.connect() as connection:
            head = [bearer(self.server.key), ("Content-Type", "application/json")]
            answer = connection.ask(request("POST", path, head, json.dumps(body).encode()))
        assert answer.status == 200, answer.body
        return answer.json()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One model as it is, with a cache, refusing longer texts, with numbers alone; a ranker; a classifier."""
    scratch, port = tmp_path_factory.mktemp("texts"), free_port()
    write_text_model(scratch / "model")
    write_text_model(scratch / "ranker", head="logits", labels=1)
    write_text_model(scratch / "moods", head="logits")
    write_script(scratch / "greatest", GREATEST)
    labels = {"0": "sad", "1": "calm", "2": "glad"}
    (scratch / "moods" / "config.json").write_text(json.dumps({"id2label": labels}))
    deployment = scratch / "deployment.yaml"
    deployment.write_text(f"""
frontends: 1
grpc_port: {port}
models:
  - {{path: model, name: m, max_batch_rows: 16}}
  - {{path: model, name: kept, cache_mb: 1}}
  - {{path: model, name: strict, text: {{longer: refuse, max_tokens: 32}}}}
  - {{path: model, name: numbers, text: off}}
  - {{path: ranker}}
  - {{path: moods}}
  - {{path: greatest/score.py, name: greatest}}
pipelines:
  place:
    steps:
      - {{model: m, inputs: {{text: sentence}}, outputs: {{sentence_embedding: vector}}}}
      - {{model: greatest, inputs: {{data: vector}}, outputs: {{result: place}}}}
""")
    with LiveServer(scratch, "--config", deployment) as server:
        yield Served(server, port, scratch / "model")


def close(answer: Any, expected: np.ndarray) -> bool:
    array = np.array(answer)
    return array.shape == expected.shape and np.allclose(array, expected, atol=1e-5)


def test_texts_are_scored(served: Served) -> None:
    """Texts, and pairs of texts, have the answers that they have alone."""
    answer = served.score(TEXTS)
    assert close(answer.json(), served.own_answers(*TEXTS))
    assert answer.header("stoker-cut-texts") is None
    pairs = [["how far", "to the next town"], ["", "a query"]]
    assert close(served.score(pairs).json(), served.own_answers(*pairs))


@pytest.mark.parametrize(
    "data", ["a text", [], [1], ["a", ["a", "b"]], [["a", "b", "c"]], {"other": ["a"]}, [None]]
)
def test_other_data_is_refused(served: Served, data: Any) -> None:
    """An error of the caller, in each case."""
    answer = served.score(data)
    assert (answer.status, answer.error_code()) == (422, "invalid_input")


def test_longer_texts_are_cut_or_refused(served: Served) -> None:
    """The answer says how many were cut; where they are refused, the error says which one."""
    answer = served.score(["stones", LONG, LONG])
    assert answer.header("stoker-cut-texts") == "2"
    assert close(answer.json(), served.own_answers("stones", LONG, LONG))
    refused = served.score(["stones", LONG], "strict")
    assert (refused.status, refused.error_code()) == (422, "invalid_input")
    assert refused.json()["message"] == "Text 1 has more than 32 tokens; send shorter ones."


def test_many_texts_and_long_bodies(served: Served) -> None:
    """More texts than rows of the queue, in a long body; other callers are answered."""
    many = [f"{text} {number % 7}" for number in range(6000) for text in TEXTS]
    body = json.dumps({"data": many}).encode()
    assert len(body) > 1 << 20
    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(served.score, many)
        for _ in range(20):
            assert served.score(["stones"]).status == 200
    expected = served.own_answers(*many[:28])
    assert close(answer.result().json(), np.tile(expected, (len(many) // 28 + 1, 1))[: len(many)])


def test_long_bodies_of_embeddings(served: Served) -> None:
    """They are read beside the event loop, as those of the scoring endpoint are."""
    many = [f"{text} {number % 7}" for number in range(6000) for text in TEXTS]
    with ThreadPoolExecutor(2) as threads:
        answers = threads.submit(
            served.post, "/api/v1/service/m/v1/embeddings", {"input": many, "dimensions": 4}
        )
        for _ in range(20):
            assert served.score(["stones"]).status == 200
    answer, (first,) = answers.result(), served.own_answers(many[0])
    assert [one["index"] for one in answer["data"]] == [*range(len(many))]
    assert close(answer["data"][0]["embedding"], first[:4] / np.linalg.norm(first[:4]))
    assert answer["usage"]["total_tokens"] > len(many)


def test_answers_are_kept_by_tokens(served: Served) -> None:
    """Texts of the same tokens share an answer."""
    first = served.score(["How FAR is it"], "kept")
    assert served.score(["how far is it"], "kept").json() == first.json()
    assert served.server.metric("stoker_cache_hits_total", model="kept") == 1


def test_numbers_alone(served: Served) -> None:
    """With `text: off` the model takes its own inputs, as without a tokenizer."""
    ids = {name: [[2, 7, 3]] for name in ("input_ids", "attention_mask", "token_type_ids")}
    ids |= {"attention_mask": [[1, 1, 1]], "token_type_ids": [[0, 0, 0]]}
    assert len(served.score(ids, "numbers").json()[0]) == 32
    assert served.score(["a"], "numbers").status == 422


def test_the_open_inference_protocol(served: Served) -> None:
    """Strings in JSON, as a list or as a column; the metadata has the input."""
    expected = served.own_answers(*TEXTS)
    for shape in ([4], [4, 1]):
        given = {"name": "text", "datatype": "BYTES", "shape": shape, "data": TEXTS}
        (output,) = served.post("/v2/models/m/infer", {"inputs": [given]})["outputs"]
        assert close(np.reshape(output["data"], output["shape"]), expected)
    with served.server.connect() as connection:
        metadata = connection.ask(request("GET", "/v2/models/m", [bearer(served.server.key)])).json()
    assert metadata["inputs"][0]["name"] == "text"
    assert metadata["inputs"][0]["datatype"] == "BYTES"
    scalar = {"name": "text", "datatype": "BYTES", "shape": [], "data": ["a"]}
    with served.server.connect() as connection:
        body = json.dumps({"inputs": [scalar]}).encode()
        refused = connection.ask(request("POST", "/v2/models/m/infer", [bearer(served.server.key)], body))
    assert refused.status == 400


def test_tensorflow_serving_and_mlflow(served: Served) -> None:
    """Rows and columns of strings."""
    expected = served.own_answers(*TEXTS)
    assert close(served.post("/v1/models/m:predict", {"instances": TEXTS})["predictions"], expected)
    assert close(served.post("/v1/models/m:predict", {"inputs": TEXTS})["outputs"], expected)
    invoked = served.post("/api/v1/service/m/invocations", {"inputs": TEXTS})
    assert close(invoked["predictions"], expected)


def test_grpc(served: Served) -> None:
    """Strings as Triton's client sends them."""
    expected = served.own_answers(*TEXTS)
    given = triton.InferInput("text", [4], "BYTES")
    given.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
    with triton.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as client:
        found = client.infer("m", [given], headers={"authorization": f"Bearer {PRIMARY}"})
    assert close(found.as_numpy("sentence_embedding"), expected)


def test_the_client(served: Served) -> None:
    """Lists of texts, and arrays by name."""
    expected = served.own_answers(*TEXTS)
    address = f"http://127.0.0.1:{served.server.port}/api/v1/service/m/score"
    with Client(address, key=served.server.key) as client:
        assert close(client.score(TEXTS), expected)
        assert close(client.infer({"text": TEXTS})["sentence_embedding"], expected)


def test_swagger_describes_texts(served: Served) -> None:
    """Data is a list of strings."""
    with served.server.connect() as connection:
        path = "/api/v1/service/m/swagger.json"
        swagger = connection.ask(request("GET", path, [bearer(served.server.key)])).json()
    assert swagger["definitions"]["ServiceInput"]["properties"]["data"] == {
        "type": "array",
        "items": {"type": "string"},
    }


def test_embeddings_in_openais_form(served: Served) -> None:
    """Floats and base64 are the same numbers; usage counts the tokens."""
    path = "/api/v1/service/m/v1/embeddings"
    expected = served.own_answers(*TEXTS)
    answer = served.post(path, {"model": "m", "input": TEXTS})
    assert (answer["object"], answer["model"]) == ("list", "m")
    assert [(one["object"], one["index"]) for one in answer["data"]] == [("embedding", n) for n in range(4)]
    assert close([one["embedding"] for one in answer["data"]], expected)
    tokenizer = Tokenizer.from_file(str(served.folder / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    encoded = served.post(path, {"model": "m:1", "input": TEXTS, "encoding_format": "base64"})
    vectors = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in encoded["data"]]
    assert np.array_equal(vectors, np.array([one["embedding"] for one in answer["data"]], np.float32))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": TEXTS}),
        ("/api/v1/service/strict/v1/embeddings", {"input": ["stones", LONG]}),
        ("/api/v1/service/m/v1/embeddings", {"input": ["stones", LONG]}),
        (
            "/api/v1/service/ranker/v1/rerank",
            {"query": "how far", "documents": ["a b", "far"]},
        ),
    ],
)
def test_text_apis_answer_the_same_on_both_paths(served: Served, path: str, body: Any) -> None:
    """Byte for byte, with the same headers."""
    direct, through_app = served.by_both_paths(path, body)
    assert direct.comparable() == through_app.comparable()


def test_embeddings_are_shortened(served: Served) -> None:
    """`dimensions` takes the first numbers, and makes them one long."""
    answer = served.post("/api/v1/service/m/v1/embeddings", {"input": "stones", "dimensions": 8})
    (vector,) = served.own_answers("stones")[:, :8]
    assert close(answer["data"][0]["embedding"], vector / np.linalg.norm(vector))


def test_kept_answers_count_tokens(served: Served) -> None:
    """Usage is that of the request, whether or not its answer was kept."""
    answers = [
        served.post("/api/v1/service/kept/v1/embeddings", {"input": "birds and stones"}) for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert answers[0]["usage"]["total_tokens"] == 5


@pytest.mark.parametrize(
    "documents", [["a b", "far rivers", "how far is it"], [{"text": "a b"}, {"text": "far"}]]
)
def test_documents_are_ranked(served: Served, documents: list[Any]) -> None:
    """The score of a pair becomes a number between 0 and 1; the most relevant document is first."""
    texts = [one["text"] if isinstance(one, dict) else one for one in documents]
    request = {
        "model": "ranker",
        "query": "how far",
        "documents": documents,
        "top_n": 2,
        "return_documents": True,
    }
    answer = served.post("/api/v1/service/ranker/v1/rerank", request)
    served_ranker = dataclasses.replace(served, folder=served.folder.parent / "ranker")
    logits = served_ranker.own_answers(*(["how far", text] for text in texts)).reshape(-1)
    order = np.argsort(-logits)[:2].tolist()
    assert [one["index"] for one in answer["results"]] == order
    assert [one["document"]["text"] for one in answer["results"]] == [texts[place] for place in order]
    scores = [one["relevance_score"] for one in answer["results"]]
    assert close(scores, 1 / (1 + np.exp(-logits[order])))
    assert answer["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("m/v1/embeddings", {"input": []}, 400, '"input" must be a text or a list of texts'),
        ("m/v1/embeddings", {"input": [[1, 2]]}, 400, '"input" must be'),
        ("m/v1/embeddings", [1], 400, "The body must be a JSON object."),
        ("m/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, '"encoding_format" must be'),
        ("m/v1/embeddings", {"input": "a", "dimensions": 0}, 400, '"dimensions" must be a whole number'),
        (
            "m/v1/embeddings",
            {"input": "a", "dimensions": 33},
            400,
            '"dimensions" is 33, and the model has 32',
        ),
        ("m/v1/embeddings", {"input": "a", "model": "ada"}, 404, "This path is for the model m, not ada"),
        ("numbers/v1/embeddings", {"input": "a"}, 400, "numbers takes no texts."),
        ("m/v1/rerank", {"query": "a", "documents": ["b"]}, 400, "The model gives 32 numbers for a pair"),
        ("m/v1/rerank", {"query": "a"}, 400, '"query" must be a text'),
        ("m/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, 400, '"top_n" must be'),
    ],
)
def test_errors_have_openais_form(served: Served, path: str, body: Any, status: int, words: str) -> None:
    """The message says what is wrong, on the fast path and through the app."""
    answer, through_app = served.by_both_paths(f"/api/v1/service/{path}", body)
    assert answer.status == status
    error = answer.json()["error"]
    assert answer.comparable() == through_app.comparable()
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/api/v1/service/m/v1/embeddings"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_text_apis_are_posted_to(served: Served, method: str, path: str) -> None:
    """405 comes with `Allow`; the rest of `/v1` is TensorFlow Serving's, which has other words for it."""
    with served.server.connect() as connection:
        answer = connection.ask(request(method, path, [bearer(served.server.key)], b"{}"))
    assert (answer.status, answer.header("allow")) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_embeddings_need_a_key(served: Served) -> None:
    """Without one the request is refused before it is read."""
    with served.server.connect() as connection:
        answer = connection.ask(request("POST", "/api/v1/service/m/v1/embeddings", [], b"{}"))
    assert answer.status == 401
    assert answer.json()["error"]["code"] == "unauthorized"


def test_classes_have_labels(served: Served) -> None:
    """The labels of `config.json` are in the metadata, and in the answers to requests for classes."""
    with served.server.connect() as connection:
        metadata = connection.ask(request("GET", "/v2/models/moods", [bearer(served.server.key)])).json()
    assert metadata["parameters"]["labels"] == {"logits": ["sad", "calm", "glad"]}
    given = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["how far is it"]}
    wanted = [{"name": "logits", "parameters": {"classification": 1}}]
    (output,) = served.post("/v2/models/moods/infer", {"inputs": [given], "outputs": wanted})["outputs"]
    moods = dataclasses.replace(served, folder=served.folder.parent / "moods")
    best = int(moods.own_answers("how far is it").argmax())
    assert output["data"][0].endswith(f":{best}:{['sad', 'calm', 'glad'][best]}")


def test_texts_begin_a_pipeline(served: Served) -> None:
    """Short texts and those that are encoded on a thread; one that is no text is refused."""
    expected = served.own_answers(*TEXTS, LONG).argmax(axis=1)
    assert served.score([*TEXTS, LONG], "place").json() == expected.tolist()
    assert served.score([1], "place").status == 422


def test_callers_share_batches_and_get_their_own_answers(served: Served) -> None:
    """Sixteen callers at once send texts of all lengths, some cut, some that are encoded on threads."""
    random = np.random.default_rng(11)
    words = WORDS.split()
    lengths = np.clip(random.lognormal(2.5, 1, 120).astype(int), 1, 400)
    texts = [" ".join(random.choice(words, length)) for length in lengths]
    expected = served.own_answers(*texts)

    def call(number: int) -> None:
        mine = np.random.default_rng(number).integers(0, len(texts), (12, 3))
        for places in mine:
            answer = served.score([texts[place] for place in places])
            assert close(answer.json(), expected[places])

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(call, range(16)))
