"""Tests of rows without a tolerance: models as functions of numpy arrays, and the zoo under ONNX Runtime."""

import zlib
from collections.abc import Callable, Mapping
from itertools import count

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.zoo import ZOO

from stoker.isolation.row_test import Evidence, try_rows
from stoker.tensors import TensorInfo

FLOATS = (TensorInfo("x", "float32", (-1, 4)),)
INDICES = (TensorInfo("x", "int64", (-1, 3)),)
TEXTS = (TensorInfo("x", "string", (-1,)),)
Function = Callable[[np.ndarray], np.ndarray]


def evidence(
    function: Function,
    inputs: tuple[TensorInfo, ...] = FLOATS,
    sample: Mapping[str, np.ndarray] | None = None,
    *,
    proven: bool = False,
    tick_s: float = 0.0,
) -> Evidence:
    """Return the evidence for a function of `x`; each look at the clock is `tick_s` later."""
    ticks = count()

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return {"y": function(feeds["x"])}

    return try_rows(run, inputs, [16, 32], sample, proven=proven, clock_s=lambda: tick_s * next(ticks))


APART: dict[str, Function] = {
    "sum of a row": lambda x: x.sum(axis=1, keepdims=True),
    "softmax of a row": lambda x: np.exp(x - x.max(axis=1, keepdims=True)),
    "identity": lambda x: x,
    "a class": lambda x: x.argmax(axis=1),
    "a constant": lambda x: np.zeros((len(x), 2), np.float32),
}
MIXED: dict[str, Function] = {
    "mean × 1e-6": lambda x: x + np.float32(1e-6) * x.mean(axis=0),
    "largest": lambda x: x / np.abs(x).max(),
    "nan spreads": lambda x: x + np.float32(0) * x.sum(),
    "condition far away": lambda x: -x if np.nansum(x) > 1e5 else x,
    "rows that are equal": lambda x: x + np.float32(len(x) - len(np.unique(x, axis=0))),
    "the row before": lambda x: x + np.roll(x, 1, axis=0) * np.float32(1e-6),
    "how many rows": lambda x: x / np.float32(len(x)),
    "which row": lambda x: x + np.arange(len(x), dtype=np.float32)[:, None],
    "a row that is far away": lambda x: np.where(np.abs(x) > 100, x - np.float32(1e-3) * x.mean(axis=0), x),
    "rank": lambda x: x[:, :1].argsort(axis=0),
    "one answer": lambda x: x.mean(axis=0),
    "no answer": lambda x: x.sum(),
    "fewer answers": lambda x: x[1:],
    "rows that are left out": lambda x: x[~(x[:, 0] < -1)],
    "rows that are answered twice": lambda x: np.concatenate([x, x[x[:, 0] < -1]]),
    "rows that have a part for each word": lambda x: np.repeat(x, np.where(x[:, 0] > 100, 2, 1), axis=0),
}


@pytest.mark.parametrize("name", APART)
def test_independent_rows_are_apart(name: str) -> None:
    """Companions of all kinds change nothing, and NaN is one of them."""
    found = evidence(APART[name])
    assert (found.finding, found.reason, found.non_finite) == ("apart", "", True)
    assert found.companions > 50
    assert found.difference is not None


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_influence_each_other_are_mixed(name: str) -> None:
    """Small influences, unusual rows and all places are found."""
    found = evidence(MIXED[name])
    assert found.finding == "mixed"
    assert found.reason


@settings(STEADY, max_examples=40)
@given(
    weights=st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4),
    leak=st.floats(2**-20, 1, width=32),
    place=st.integers(0, 3),
)
def test_any_leak_that_changes_a_bit_is_found(weights: list[float], leak: float, place: int) -> None:
    """A linear model is apart; the same with a share of one column's sum over the batch is not."""
    matrix = np.asarray(weights, np.float32)
    assert evidence(lambda x: x * matrix).finding == "apart"
    leaking = evidence(lambda x: x * matrix + np.float32(leak) * x[:, place].sum())
    assert leaking.finding == "mixed"


@pytest.mark.parametrize("name", ZOO)
def test_mixing_models_of_the_zoo_are_found_by_tests(name: str) -> None:
    """Each mixing model is found under ONNX Runtime, and the other model of its pair is apart."""
    for make, apart in zip(ZOO[name], (False, True), strict=True):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(make(), options)
        names = [output.name for output in session.get_outputs()]
        kinds = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(string)": "string"}
        inputs = tuple(
            TensorInfo(value.name, kinds[value.type], (-1, *value.shape[1:]))
            for value in session.get_inputs()
        )

        def run(
            feeds: Mapping[str, np.ndarray],
            session: onnxruntime.InferenceSession = session,
            names: list[str] = names,
        ) -> dict[str, np.ndarray]:
            texts = {
                key: np.array([text.decode() for text in array.reshape(-1)], object).reshape(array.shape)
                if array.dtype == object
                else array
                for key, array in feeds.items()
            }
            return dict(zip(names, session.run(names, texts), strict=True))

        found = try_rows(run, inputs, [16, 64], clock_s=lambda: 0.0)
        assert (found.finding == "apart") == apart, found


def test_refused_test_rows_do_not_disprove_a_model() -> None:
    """An index out of range proves nothing; values in range are compared."""
    table = np.arange(40.0, dtype=np.float32)
    found = evidence(lambda x: table[x], INDICES)
    assert found.finding == "apart"
    assert evidence(lambda x: table[x] + table[x].max(), INDICES).finding == "mixed"


def test_integers_grow_step_by_step() -> None:
    """A model that allocates by the number in its input does not use up all memory."""
    largest = 0
    seconds = [0.0]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal largest
        largest = max(largest, int(feeds["x"].max()))
        seconds[0] += 1e-6 * max(1, int(feeds["x"].max()))
        return {"y": feeds["x"].sum(axis=1)}

    assert try_rows(run, INDICES, [8], clock_s=lambda: seconds[0]).finding == "apart"
    assert 1000 < largest <= 30_000


def test_padding_to_the_longest_text_is_mixed() -> None:
    """A model that divides by the longest text is mixed; one that uses only its own text is apart."""

    def padded(x: np.ndarray) -> np.ndarray:
        longest = max(map(len, x))
        return np.array([len(text) / max(longest, 1) for text in x], np.float32)

    assert evidence(padded, TEXTS).finding == "mixed"
    lengths: Function = lambda x: np.array([len(text) for text in x], np.float32)  # noqa: E731
    assert evidence(lengths, TEXTS).finding == "apart"


def _weights(word: bytes, seed: int) -> list[float]:
    return [zlib.crc32(word, 3 * seed + number) / 2**32 - 0.3 for number in range(3)]


@pytest.mark.parametrize("seed", range(4))
def test_another_order_of_addition_is_mixed(seed: int) -> None:
    """Padding the weights of words with zeros changes only the last bits of their sum."""

    def bag(x: np.ndarray) -> np.ndarray:
        texts = [[_weights(word, seed) for word in text.split()] for text in x]
        padded = np.zeros((len(x), 3, max(1, *map(len, texts))), np.float32)
        for place, weights in enumerate(texts):
            padded[place, :, : len(weights)] = np.reshape(weights, (-1, 3)).T
        return padded.sum(axis=2)

    assert evidence(bag, TEXTS, tick_s=0.01).finding == "mixed"


def test_a_model_that_refuses_sentences_is_tried_with_words() -> None:
    """Single words are tried after sentences."""

    def lookup(x: np.ndarray) -> np.ndarray:
        if any(b" " in text for text in x):
            raise ValueError("one word, please")
        return np.array([len(text) for text in x])

    assert evidence(lookup, TEXTS).finding == "apart"


def test_a_model_that_takes_only_its_sample_is_tried_with_that() -> None:
    """Rows made from the sample have its numbers; without it all made-up rows are refused."""

    def strict(x: np.ndarray) -> np.ndarray:
        if not np.isin(x, [7, 8, 9]).all():
            raise ValueError("only 7, 8 and 9")
        return x * 2

    assert evidence(strict, INDICES) == Evidence("unknown", "only 7, 8 and 9")
    sample = {"x": np.array([[7, 8, 9]])}
    assert evidence(strict, INDICES, sample).finding == "apart"
    assert evidence(lambda x: strict(x) + x[0], INDICES, sample).finding == "mixed"


def test_a_model_that_takes_only_one_row_is_unknown() -> None:
    """Equal rows cannot show an influence on each other."""

    def picky(x: np.ndarray) -> np.ndarray:
        if any(text != b"the only one" for text in x):
            raise ValueError("no")
        return np.zeros(len(x), np.float32)

    found = evidence(picky, TEXTS, {"x": np.array([b"the only one"], object)})
    assert (found.finding, found.companions) == ("unknown", 0)


def test_free_sizes_are_tried_until_one_is_taken() -> None:
    """Some models take only images whose sizes are multiples of 32."""

    def strict(x: np.ndarray) -> np.ndarray:
        if x.shape[1] % 32:
            raise ValueError("multiples of 32")
        return x.mean(axis=1)

    assert evidence(strict, (TensorInfo("x", "float32", (-1, -1)),)).finding == "apart"


def test_a_model_of_one_row_is_mixed() -> None:
    """The reason is that it fails on a batch of two."""

    def single(x: np.ndarray) -> np.ndarray:
        if len(x) != 1:
            raise ValueError("I take one row")
        return x

    found = evidence(single)
    assert found.finding == "mixed"
    assert "fails on a batch of two: I take one row" in found.reason


def test_a_row_that_is_answered_only_beside_others_is_mixed() -> None:
    """The row has the number of another row, so it is refused alone."""

    def named(x: np.ndarray) -> np.ndarray:
        if x.max() >= len(x):
            raise ValueError("there is no such row")
        return x

    found = evidence(named, (TensorInfo("x", "int64", (-1,)),))
    assert found.finding == "mixed"
    assert "refused alone: there is no such row" in found.reason


def test_nan_that_is_refused_is_no_part_of_the_proof() -> None:
    """The evidence says that NaN was not tested."""

    def finite(x: np.ndarray) -> np.ndarray:
        if not np.isfinite(x).all():
            raise ValueError("not finite")
        return x

    found = evidence(finite)
    assert (found.finding, found.non_finite) == ("apart", False)


def test_a_device_with_noise_is_allowed_its_noise_alone() -> None:
    """Differences up to those of equal batches are allowed; larger ones are mixed."""
    flips = count()

    def noisy(x: np.ndarray) -> np.ndarray:
        return x * np.float32(1 + 1e-6 * (next(flips) % 2))

    assert evidence(noisy).finding == "apart"
    assert evidence(lambda x: noisy(x) + np.float32(1e-3) * x.mean(axis=0)).finding == "mixed"


def test_a_model_that_draws_random_numbers_is_not_called_apart() -> None:
    """So much noise could hide an influence of rows."""
    random = np.random.default_rng(1)
    found = evidence(lambda x: x + random.random(x.shape, np.float32))
    assert found.finding == "unknown"
    assert "equal batches" in found.reason


def test_a_slow_model_that_is_proven_is_tried_with_few_batches() -> None:
    """The load does not wait for tests of a known result."""
    rows = [0]

    def counted(x: np.ndarray) -> np.ndarray:
        rows[0] += len(x)
        return x

    assert evidence(counted, proven=True, tick_s=0.1).finding == "apart"
    few, rows[0] = rows[0], 0
    assert evidence(counted, tick_s=0.1).finding == "apart"
    assert few < 16 < rows[0] < 64


def test_slow_first_runs_do_not_shorten_the_row_test() -> None:
    """The first runs optimise a graph, so their time does not count as slowness."""

    def companions(first_s: float) -> int:
        seconds, runs = [0.0], count()

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            seconds[0] += first_s if next(runs) < 2 else 1e-4
            return {"y": feeds["x"] * 2}

        return try_rows(run, FLOATS, [16], clock_s=lambda: seconds[0]).companions

    assert companions(first_s=0.1) == companions(first_s=1e-4)


def test_the_evidence_has_the_largest_difference_to_answers_alone() -> None:
    """Other shapes run other kernels, which is a question of accuracy."""
    found = evidence(lambda x: x * np.float32(1 + 1e-6 * (len(x) > 1)))
    assert found.finding == "apart"
    assert found.difference is not None
    assert 0 < found.difference < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "int8", "string"])
def test_rows_that_need_too_much_memory_are_not_made(dtype: str) -> None:
    """The error has the sizes; no model runs, and no memory is allocated."""
    vast = TensorInfo("x", dtype, (-1, 1 << 25, 1 << 20))
    with pytest.raises(
        MemoryError, match=r"trying 3 rows of x \(35,184,372,088,832 numbers\) would take .* GiB"
    ):
        evidence(lambda x: x, (vast,))
