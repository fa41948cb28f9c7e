"""Texts as rows of tokens."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.text_models import write_tokenizer

from stoker.errors import BodyTooLarge, InvalidInput, LoadFailed
from stoker.settings.text_input import TextInput
from stoker.wire.texts import SEGMENT_BITS, Tokenizing, text_tensors


def strings(*values: Any) -> np.ndarray:
    """Texts, or lists of texts, as a request has them."""
    array = np.empty(np.shape(values), object)
    array[...] = np.vectorize(str.encode, otypes=[object])(np.array(values, object))
    return array


@pytest.fixture
def text(tmp_path: Path) -> TextInput:
    write_tokenizer(tmp_path)
    return TextInput(tmp_path / "tokenizer.json", 12)


def ids_of(row: np.ndarray) -> list[int]:
    return [int(word) & ((1 << SEGMENT_BITS) - 1) for word in row[1 : 1 + row[0]]]


def segments_of(row: np.ndarray) -> list[int]:
    return [int(word) >> SEGMENT_BITS for word in row[1 : 1 + row[0]]]


def test_rows_equal_the_librarys(text: TextInput, tmp_path: Path) -> None:
    """Length, ids and segments are equal, for texts and for pairs."""
    tokenizer = write_tokenizer(tmp_path)
    tokenizing = Tokenizing(text)
    for texts in (strings("how far is it", "a quiet harbour"), strings(["how far", "to town"], ["a", "b"])):
        tokenizing.check(texts)
        rows, cut = tokenizing.encode(texts)
        assert (rows.shape, rows.dtype, cut) == ((2, 13), np.int32, 0)
        for row, parts in zip(rows, texts.tolist(), strict=True):
            read = [part.decode() for part in (parts if isinstance(parts, list) else [parts])]
            expected = tokenizer.encode(*read)
            assert ids_of(row) == expected.ids
            assert segments_of(row) == expected.type_ids
            assert not row[1 + row[0] :].any()


def test_a_column_is_a_list_of_texts(text: TextInput) -> None:
    """`[n, 1]`, as Triton's clients send strings, is `[n]`."""
    tokenizing = Tokenizing(text)
    column = tokenizing.encode(strings(["how far"], ["is it"])).rows
    assert np.array_equal(column, tokenizing.encode(strings("how far", "is it")).rows)


def test_longer_texts_are_cut_and_counted(text: TextInput) -> None:
    """A cut text ends with the closing token; of a huge one only the start is read."""
    tokenizing = Tokenizing(text)
    rows, cut = tokenizing.encode(strings("how " * 50, "how", "how " * 500_000))
    assert (rows[:, 0].tolist(), cut) == ([12, 3, 12], 2)
    assert ids_of(rows[0])[-1] == ids_of(rows[1])[-1]
    assert np.array_equal(rows[0], rows[2])


def test_longer_texts_are_refused_if_set(text: TextInput) -> None:
    """The message names the text by its place in the request."""
    tokenizing = Tokenizing(TextInput(text.tokenizer, 12, "refuse"))
    assert tokenizing.encode(strings("how " * 10)).rows[0, 0] == 12
    with pytest.raises(InvalidInput, match="Text 5 has more than 12 tokens; send shorter ones"):
        tokenizing.encode(strings("how", "how " * 11), first=4)


@pytest.mark.parametrize("shape", [(), (2, 3), (1, 1, 1)])
def test_other_shapes_are_refused(text: TextInput, shape: Sequence[int]) -> None:
    """Texts are a list of strings, or of pairs of strings."""
    with pytest.raises(InvalidInput, match="Expected texts, or pairs of texts; got the shape"):
        Tokenizing(text).check(np.full(shape, b"a", object))


def test_too_many_texts_are_refused(text: TextInput) -> None:
    """Their rows would take much memory, however short the texts are."""
    tokenizing = Tokenizing(TextInput(text.tokenizer, 8192))
    with pytest.raises(BodyTooLarge, match="2048 texts are more than the 2047 that are taken at once"):
        tokenizing.check(np.full(2048, b"", object))


def test_a_character_is_not_cut_in_two(text: TextInput) -> None:
    """Wherever in a character the last byte lies that is read; what is no UTF-8 is refused in long texts too."""
    tokenizing = Tokenizing(text)
    for start in ("", "a", "ab", "abc"):
        assert tokenizing.encode(strings(start + "\U0001f525" * 1000)).cut == 1
    for content in (b"\xff" + b"a" * 2000, b"a\xff" * 1000):
        with pytest.raises(InvalidInput, match="Text 0 is not UTF-8"):
            tokenizing.encode(np.array([content], object))


def test_bytes_that_are_no_utf8_are_refused(text: TextInput) -> None:
    """The message names the text."""
    with pytest.raises(InvalidInput, match="Text 1 is not UTF-8"):
        Tokenizing(text).encode(np.array([b"a", b"\xff"], object))


def test_the_padding_of_the_tokenizer_is_used_and_switched_off(text: TextInput, tmp_path: Path) -> None:
    """A `tokenizer.json` may pad to a fixed length, which would hide how long texts are."""
    tokenizer = write_tokenizer(tmp_path)
    tokenizer.enable_padding(pad_id=4, pad_token="[MASK]", length=20)
    tokenizer.save(str(text.tokenizer))
    tokenizing = Tokenizing(text)
    assert tokenizing.pad_id == 4
    assert tokenizing.encode(strings("how")).rows[0, 0] == 3
    assert Tokenizing(TextInput(text.tokenizer, 12, pad_id=1)).pad_id == 1


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"version": "1.0", "model": {"type": "Custom"}}', b"\xff" * 100]
)
def test_a_file_that_is_no_tokenizer_is_a_load_error(text: TextInput, content: bytes) -> None:
    """The message names the file; a component that the library does not have is an error, and runs no code."""
    text.tokenizer.write_bytes(content)
    with pytest.raises(LoadFailed, match=r"tokenizer\.json cannot be used"):
        Tokenizing(text)
    text.tokenizer.unlink()
    with pytest.raises(LoadFailed, match=r"tokenizer\.json cannot be used"):
        Tokenizing(text)


def test_tensors_of_texts() -> None:
    """Callers see strings."""
    assert str(text_tensors(()).inputs[0]) == "text string[...]"


class _Panic(BaseException):
    """As the library's own, which is no `Exception`."""


class _Panicking:
    def encode_batch_fast(self, inputs: object) -> None:
        raise _Panic("index out of bounds")


def test_a_panic_of_the_library_is_an_error(text: TextInput, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails its request, and ends no thread."""
    tokenizing = Tokenizing(text)
    monkeypatch.setattr(tokenizing, "_tokenizer", _Panicking())
    with pytest.raises(RuntimeError, match=r"tokenizer\.json fails on a text: index out of bounds"):
        tokenizing.encode(strings("a"))


def test_pairs_have_segments_without_a_post_processor(text: TextInput) -> None:
    """The library's fast way leaves them out; texts alone have none."""
    content = json.loads(text.tokenizer.read_text())
    text.tokenizer.write_text(json.dumps({**content, "post_processor": None}))
    pairs = Tokenizing(text).encode(strings(["far", "is far"])).rows
    assert segments_of(pairs[0]) == [0, 1, 1]


def test_the_largest_id_is_found(text: TextInput, tmp_path: Path) -> None:
    """That of the vocabulary."""
    vocabulary = write_tokenizer(tmp_path).get_vocab()
    assert Tokenizing(text).find_largest_id() == max(vocabulary.values())
