"""Models of texts: how they are loaded, and that a row has the answer that it has alone."""

import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.text_models import INPUTS, encoder_weights, write_encoder, write_text_model, write_tokenizer
from tokenizers import Tokenizer

from stoker.deployment import Deployment, Device
from stoker.device.loading import fork, load
from stoker.errors import LoadFailed
from stoker.isolation.audit import audit
from stoker.runtimes import text as text_runtimes
from stoker.runtimes.base import JoiningRuntime
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.text import TextRuntime
from stoker.runtimes.token_feeds import TokenFeeds
from stoker.settings.text_input import TextInput
from stoker.wire.texts import Tokenizing

CPU = Device("cpu", 0, "CPU")
TEXTS = (
    "how far is it",
    "",
    "a quiet harbour before the morning " * 3,
    "stones",
    "the first ships of the morning came in",
)


def deployment(folder: Path, max_tokens: int = 64, **settings: Any) -> Deployment:
    return Deployment(
        "m", 1, "onnx", folder / "model.onnx", folder, 8, 1 << 20,
        text=TextInput(folder / "tokenizer.json", max_tokens, pad_id=0, is_required=True), **settings,
    )  # fmt: skip


def rows_of(folder: Path, *texts: Any, max_tokens: int = 64) -> np.ndarray:
    array = np.empty(np.shape(texts), object)
    array[...] = np.vectorize(str.encode, otypes=[object])(np.array(texts, object))
    return Tokenizing(TextInput(folder / "tokenizer.json", max_tokens)).encode(array).rows


def own_answers(folder: Path, *texts: Any) -> np.ndarray:
    """The answer of ONNX Runtime to each text alone, as the tokenizer gives its tokens."""
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    answers = []
    for text in texts:
        found = tokenizer.encode(*([text] if isinstance(text, str) else text))
        feeds = {
            "input_ids": found.ids,
            "attention_mask": found.attention_mask,
            "token_type_ids": found.type_ids,
        }
        taken = {one.name: np.array([feeds[one.name]]) for one in session.get_inputs()}
        answers.append(session.run(None, taken)[0])
    return np.concatenate(answers)


@pytest.mark.parametrize(
    ("settings", "instances", "shares"),
    [
        ({"threads": 6}, 4, [(6, True), (1, False)]),
        ({"threads": 6, "instances": 2}, 2, [(6, True), (3, False)]),
        ({"threads": 6, "instances": 1}, 1, [(6, True)]),
        ({"threads": 1}, 1, [(1, True)]),
    ],
)
def test_batches_at_the_same_time_share_the_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, int],
    instances: int,
    shares: list[tuple[int, bool]],
) -> None:
    """Each session by its threads and whether they spin; all give the answers of the model."""
    write_text_model(tmp_path)
    monkeypatch.setattr("stoker.runtimes.onnx.loading._SHORT_S", 0)
    opened, real = [], OnnxSessions.open

    def open_session(sessions: OnnxSessions) -> onnxruntime.InferenceSession:
        opened.append((sessions.threads, sessions.spins))
        return real(sessions)

    monkeypatch.setattr(OnnxSessions, "open", open_session)
    loaded = load(deployment(tmp_path, **settings), CPU)
    assert (loaded.instances, opened) == (instances, shares)
    rows = rows_of(tmp_path, *TEXTS)
    with ThreadPoolExecutor(instances) as pool:
        for (answers,) in pool.map(lambda _: loaded.runtime.run([rows]), range(4 * instances)):
            assert np.allclose(answers, own_answers(tmp_path, *TEXTS), atol=1e-5)


def test_parts_are_as_long_as_their_longest_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU another shape costs nothing; a GPU prepares for each, so there are fewer."""
    write_text_model(tmp_path)
    loaded = load(deployment(tmp_path), CPU)
    assert isinstance(loaded.runtime, TextRuntime)
    ran, feeds = list[int](), TokenFeeds.feeds
    monkeypatch.setattr(TokenFeeds, "feeds", lambda *taken: (ran.append(taken[2]), feeds(*taken))[1])
    for tokens in (3, 5, 9):
        loaded.runtime.run([np.array([[tokens] + [1] * 16], np.int32)])
    assert ran == [3, 5, 9]


def test_threads_beside_a_gpu_do_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute what the GPU does not, and would take the cores of the frontends."""
    write_text_model(tmp_path)
    opened = []

    def open_session(sessions: OnnxSessions) -> onnxruntime.InferenceSession:
        opened.append(sessions.spins)
        raise LoadFailed("no GPU")

    monkeypatch.setattr(OnnxSessions, "open", open_session)
    with pytest.raises(LoadFailed, match="no GPU"):
        load_onnx(deployment(tmp_path, threads=4), Device("cuda", 0, "GPU"), 4)
    assert opened == [False]


def test_further_instances_run_no_batch_before_they_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start takes as long with several: they share what the first one has prepared."""
    write_text_model(tmp_path)
    loaded = load(deployment(tmp_path), CPU)
    monkeypatch.setattr(TextRuntime, "run", lambda runtime, inputs: pytest.fail("it ran"))
    runtime, again = fork(loaded, "m")
    assert isinstance(runtime, TextRuntime)
    assert again.max_batch_rows == loaded.max_batch_rows


def test_rows_have_the_answers_of_the_model(tmp_path: Path) -> None:
    """Texts of all lengths, and pairs, in one batch; rows without a token fill it up, and get zeros."""
    write_text_model(tmp_path)
    loaded = load(deployment(tmp_path), CPU)
    assert str(loaded.signature) == "text string[...] -> sentence_embedding float32[?,32]"
    assert loaded.signature.isolation is not None
    assert loaded.signature.isolation.batched
    assert loaded.max_batch_rows == 8
    rows = rows_of(tmp_path, *TEXTS)
    (answers,) = loaded.runtime.run([np.concatenate([rows, np.zeros_like(rows[:2])])])
    assert np.allclose(answers[:5], own_answers(tmp_path, *TEXTS), atol=1e-5)
    assert not np.asarray(answers[5:]).any()
    pairs = (("how far", "to the next town"), ("a query", ""))
    (answers,) = loaded.runtime.run([rows_of(tmp_path, *pairs)])
    assert np.allclose(answers, own_answers(tmp_path, *pairs), atol=1e-5)


@pytest.mark.parametrize("inputs", [INPUTS[:2], INPUTS])
def test_inputs_are_found_by_their_names(tmp_path: Path, inputs: tuple[str, ...]) -> None:
    """Models may have no segments."""
    write_text_model(tmp_path, inputs=inputs)
    loaded = load(deployment(tmp_path), CPU)
    (answers,) = loaded.runtime.run([rows_of(tmp_path, *TEXTS)])
    assert np.allclose(answers, own_answers(tmp_path, *TEXTS), atol=1e-5)


def test_a_model_that_sees_padding_runs_row_by_row(tmp_path: Path) -> None:
    """Without a mask that has an effect, answers would depend on the batch: each row runs alone, without padding."""
    write_text_model(tmp_path, masked=False)
    loaded = load(deployment(tmp_path), CPU)
    isolation = loaded.signature.isolation
    assert isolation is not None
    assert not isolation.batched
    assert "padding changes answers by" in isolation.reason
    assert loaded.max_batch_rows == 1
    (answers,) = loaded.runtime.run([rows_of(tmp_path, *TEXTS)])
    assert np.allclose(answers, own_answers(tmp_path, *TEXTS), atol=1e-5)


def test_batching_none_runs_row_by_row(tmp_path: Path) -> None:
    """The operator's word counts."""
    write_text_model(tmp_path)
    loaded = load(deployment(tmp_path, batching="none"), CPU)
    assert loaded.max_batch_rows == 1
    (answers,) = loaded.runtime.run([rows_of(tmp_path, *TEXTS)])
    assert np.allclose(answers, own_answers(tmp_path, *TEXTS), atol=1e-5)


def test_the_sample_of_the_model_is_texts(tmp_path: Path) -> None:
    """It is read as a request is; what is no text is a load error."""
    write_text_model(tmp_path)
    (tmp_path / "sample_input.json").write_text(json.dumps({"data": ["stones and birds", "letters"]}))
    loaded = load(deployment(tmp_path), CPU)
    assert loaded.sample is not None
    assert np.array_equal(loaded.sample["text"], rows_of(tmp_path, "stones and birds", "letters"))
    (tmp_path / "sample_input.json").write_text(json.dumps({"data": [[1, 2]]}))
    with pytest.raises(LoadFailed, match=r"the sample input .* is not what the model takes"):
        load(deployment(tmp_path), CPU)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"head": "tokens"},
            r"m cannot take texts: .*with a size for each token; import it with its pooling",
        ),
        ({"renamed": True}, "m cannot take texts: texts need input_ids"),
    ],
)
def test_models_that_take_no_texts(tmp_path: Path, how: Mapping[str, Any], words: str) -> None:
    """It is an error where texts are set; else the model takes numbers, as without a tokenizer."""
    how = dict(how)
    if how.pop("renamed", False):
        write_tokenizer(tmp_path)
        write_encoder(tmp_path / "model.onnx", encoder_weights())
        content = (tmp_path / "model.onnx").read_bytes().replace(b"input_ids", b"input_idz")
        (tmp_path / "model.onnx").write_bytes(content)
    else:
        write_text_model(tmp_path, **how)
    required = deployment(tmp_path)
    with pytest.raises(LoadFailed, match=words):
        load(required, CPU)
    assert required.text is not None
    loaded = load(
        dataclasses.replace(required, text=dataclasses.replace(required.text, is_required=False)), CPU
    )
    assert loaded.signature.takes == "tensors"


def test_findings_are_kept_for_models_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load of a file neither tests nor measures; another file has its own findings."""
    write_text_model(tmp_path)
    often = deployment(tmp_path, on_demand=True, number=4711)
    first = load(often, CPU).signature.isolation
    monkeypatch.setattr(text_runtimes, "decide_batching", None)
    assert load(often, CPU).signature.isolation is first
    write_encoder(tmp_path / "model.onnx", encoder_weights(9))
    with pytest.raises(TypeError):
        load(often, CPU)


def test_findings_are_not_kept_for_another_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tokens may have another padding; the file of the model is the same."""
    write_text_model(tmp_path)
    often = deployment(tmp_path, on_demand=True, number=4712)
    load(often, CPU)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    monkeypatch.setattr(text_runtimes, "decide_batching", None)
    with pytest.raises(TypeError):
        load(often, CPU)


def test_a_broken_tokenizer_is_a_load_error(tmp_path: Path) -> None:
    """It names the file, whether or not texts are set; a model whose inputs do not fit does not read it."""
    write_text_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    required = deployment(tmp_path)
    assert required.text is not None
    found = dataclasses.replace(required, text=dataclasses.replace(required.text, is_required=False))
    for each in (required, found):
        with pytest.raises(LoadFailed, match=r"tokenizer\.json cannot be used"):
            load(each, CPU)
    content = (tmp_path / "model.onnx").read_bytes().replace(b"input_ids", b"input_idz")
    (tmp_path / "model.onnx").write_bytes(content)
    assert load(found, CPU).signature.takes == "tensors"


def test_parts_are_watched(tmp_path: Path) -> None:
    """A part keeps its rows for an audit, which finds the answers again; a fork has a monitor of its own."""
    write_text_model(tmp_path)
    runtime = load(deployment(tmp_path), CPU).runtime
    assert isinstance(runtime, JoiningRuntime)
    assert isinstance(runtime, TextRuntime)
    runtime.monitor.wants_rows = True
    runtime.run([rows_of(tmp_path, *["how far is it"] * 4)])
    taken = runtime.monitor.kept_rows
    assert taken is not None
    assert audit(runtime.run_tensors, taken).result == "passed"
    fork = runtime.fork()
    assert fork.monitor is not runtime.monitor
    rows = rows_of(tmp_path, *TEXTS)
    assert np.array_equal(fork.run([rows])[0], runtime.run([rows])[0])


def test_rows_of_too_many_tokens_are_refused(tmp_path: Path) -> None:
    """A row says how many tokens it has; more than fit is an error, and no read beyond it."""
    write_text_model(tmp_path)
    runtime = load(deployment(tmp_path), CPU).runtime
    rows = rows_of(tmp_path, "a")
    for tokens in (65, -1):
        rows[0, 0] = tokens
        with pytest.raises(ValueError, match="more tokens than fit"):
            runtime.run([rows])


def test_a_model_of_one_length_is_padded_to_it(tmp_path: Path) -> None:
    """Exporters may fix the tokens of a row; texts of other lengths are padded or cut to it."""
    write_text_model(tmp_path)
    free = own_answers(tmp_path, *TEXTS)
    model = onnx.load(tmp_path / "model.onnx")
    for given in model.graph.input:
        given.type.tensor_type.shape.dim[1].dim_value = 40
    onnx.save(model, tmp_path / "model.onnx")
    loaded = load(deployment(tmp_path, 40), CPU)
    assert loaded.signature.isolation is not None
    assert loaded.signature.isolation.batched
    (answers,) = loaded.runtime.run([rows_of(tmp_path, *TEXTS, max_tokens=40)])
    assert np.allclose(answers, free, atol=1e-5)
    fewer = load(deployment(tmp_path, 30), CPU)
    assert fewer.signature.isolation is not None
    assert fewer.signature.isolation.batched
    assert np.allclose(fewer.runtime.run([rows_of(tmp_path, *TEXTS, max_tokens=30)])[0], free, atol=1e-5)
    with pytest.raises(LoadFailed, match="its rows have 40 tokens: set max_tokens to that"):
        load(deployment(tmp_path, 64), CPU)
    alone = load(deployment(tmp_path, 40, batching="none"), CPU)
    assert np.allclose(alone.runtime.run([rows_of(tmp_path, *TEXTS, max_tokens=40)])[0], free, atol=1e-5)


@pytest.mark.tensorflow
def test_saved_models_take_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same inputs and outputs in another framework."""
    import tensorflow as tf

    monkeypatch.setattr("stoker.runtimes.tensorflow.import_tensorflow", lambda *_, **__: tf)

    class Encoder(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = tf.Variable(encoder_weights()["words"])

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "attention_mask")
            ]
        )
        def __call__(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
            seen = tf.cast(attention_mask, tf.float32)[:, :, None]
            total = tf.reduce_sum(tf.gather(self.words, input_ids) * seen, axis=1)
            return {"vector": total / tf.reduce_sum(seen, axis=1)}

    encoder = Encoder()
    tf.saved_model.save(encoder, str(tmp_path))
    write_tokenizer(tmp_path)
    settings = dataclasses.replace(deployment(tmp_path), framework="tensorflow", path=tmp_path)
    loaded = load(settings, CPU)
    assert str(loaded.signature) == "text string[...] -> vector float32[?,32]"
    assert loaded.signature.isolation is not None
    assert loaded.signature.isolation.batched
    rows = rows_of(tmp_path, *TEXTS)
    words = encoder_weights()["words"]
    expected = [words[row[1 : 1 + row[0]]].mean(axis=0) for row in rows]
    assert np.allclose(loaded.runtime.run([rows])[0], expected, atol=1e-5)


def test_a_model_with_fewer_tokens_than_its_tokenizer_is_a_load_error(tmp_path: Path) -> None:
    """Only some texts would fail, and those of the test may not."""
    weights = encoder_weights()
    write_tokenizer(tmp_path)
    weights["words"] = weights["words"][:150]
    write_encoder(tmp_path / "model.onnx", weights)
    (tmp_path / "sample_input.json").write_text(json.dumps({"data": ["a b c"]}))
    with pytest.raises(
        LoadFailed, match=r"its tokenizer has ids of tokens up to \d+, and the model fails on"
    ):
        load(deployment(tmp_path), CPU)


def test_parts_are_measured_within_the_largest_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of PyTorch may refuse more rows than that, and a device have no memory for them."""
    counts = []
    feeds_of = text_runtimes.TokenFeeds.feeds

    def record(feeds: Any, rows: np.ndarray, tokens: int) -> Any:
        counts.append(len(rows))
        return feeds_of(feeds, rows, tokens)

    monkeypatch.setattr(text_runtimes.TokenFeeds, "feeds", record)
    write_text_model(tmp_path)
    load(deployment(tmp_path), CPU)
    assert max(counts) == 8
