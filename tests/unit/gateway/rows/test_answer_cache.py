"""The cache of answers: its size, its evictions, its keys."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import ROWS, STEADY, TEXTS

from stoker.gateway.rows.cache import AnswerCache, KeptAnswer
from stoker.gateway.rows.ticket import SlicedAnswer


def answer(rows: int) -> KeptAnswer:
    """The answer to so many rows of two float32."""
    return KeptAnswer.of(rows, SlicedAnswer(ROWS, rows))


def ignore_sizes(size_bytes: int, evicted: int) -> None:
    """Note nothing."""


def test_an_answer_counts_with_all_that_it_takes() -> None:
    """The numbers of arrays and the bytes of texts, beside what any entry takes."""
    empty = answer(0).size_bytes
    assert answer(100).size_bytes == empty + 100 * 8
    texts = SlicedAnswer(TEXTS, 2)
    texts.texts[0][:] = [b"abc", b"d" * 50]
    assert KeptAnswer.of(2, texts).size_bytes == empty + 53


def test_kept_outputs_cannot_be_written() -> None:
    """A protocol that changed them would change later answers: numpy refuses."""
    (output,) = answer(3).outputs.arrays
    assert not output.flags.writeable


@given(
    st.integers(0, 20_000),
    st.lists(
        st.tuples(st.sampled_from(["keep", "find"]), st.integers(0, 9), st.integers(0, 900)), max_size=60
    ),
)
@STEADY
def test_size_never_exceeds_the_maximum(max_bytes: int, steps: list[tuple[str, int, int]]) -> None:
    """After any steps the size is right and bounded, and the least recently used answer leaves first."""
    reports: list[tuple[int, int]] = []
    cache = AnswerCache(max_bytes, lambda size_bytes, evicted: reports.append((size_bytes, evicted)))
    model: dict[bytes, KeptAnswer] = {}
    forgotten = 0
    for step, name, rows in steps:
        key = bytes([name])
        if step == "find":
            assert cache.find(key) is model.get(key)
            if key in model:
                model[key] = model.pop(key)
            continue
        kept = answer(rows)
        cache.keep(key, kept)
        if kept.size_bytes <= max_bytes:
            model.pop(key, None)
            model[key] = kept
            while sum(one.size_bytes for one in model.values()) > max_bytes:
                del model[next(iter(model))]
                forgotten += 1
        assert cache.size_bytes == sum(one.size_bytes for one in model.values()) <= max_bytes
        assert len(cache) == len(model)
    assert sum(evicted for _, evicted in reports) == forgotten
    assert not reports or reports[-1][0] == cache.size_bytes


def test_cleared_cache_is_empty() -> None:
    """After a device process has ended, none of its answers is found or counted."""
    reports: list[tuple[int, int]] = []
    cache = AnswerCache(1 << 20, lambda *sizes: reports.append(sizes))
    cache.keep(b"a", answer(1))
    cache.clear()
    assert (cache.find(b"a"), cache.size_bytes, len(cache), reports[-1]) == (None, 0, 0, (0, 0))


def test_keys_differ_by_contents_and_number_of_rows() -> None:
    """Equal rows have one key; other numbers, shapes and inputs have others."""
    cache = AnswerCache(1, ignore_sizes)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    keys = [
        cache.key_of_rows([rows]),
        cache.key_of_rows([rows[:1]]),
        cache.key_of_rows([rows[::-1].copy()]),
        cache.key_of_rows([np.zeros((0, 4), np.float32)]),
        cache.key_of_rows([np.zeros((1, 0), np.float32)]),
        cache.key_of_rows([rows[:, :2].copy(), rows[:, 2:].copy()]),
        cache.key_of_body(rows.tobytes()),
    ]
    assert len(set(keys)) == len(keys)
    assert cache.key_of_rows([rows.copy()]) == keys[0]
    assert all(len(key) == 16 for key in keys)


def test_caches_have_different_keys_for_one_body() -> None:
    """Each cache has a secret of its own, so what two requests have in one is not known of another."""
    assert AnswerCache(1, ignore_sizes).key_of_body(b"a") != AnswerCache(1, ignore_sizes).key_of_body(b"a")
