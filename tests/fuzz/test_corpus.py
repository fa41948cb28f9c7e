"""Bodies that no decoder may fail on: those that `tests.fuzz.run` has found once, and known kinds of attack.

A decoder is what `tests.fuzz.decoders` checks; each body is tried on all of its models.
"""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.fuzz.decoders import DECODERS

from stoker.gateway.grpc.messages import ModelInferRequest


def _npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> tuple[bytes, dict[str, str]]:
    """A `.npy` body with any header."""
    size = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
    body = b"\x93NUMPY" + version + size + header.encode("latin-1") + content
    return body, {"content-type": "application/x-npy"}


def _saved(array: np.ndarray) -> tuple[bytes, dict[str, str]]:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue(), {"content-type": "application/x-npy"}


def _message(**fields: Any) -> bytes:
    content: bytes = ModelInferRequest(model_name="m", **fields).SerializeToString()
    return content


def _x(shape: list[int], **contents: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": shape, "contents": contents}


_DEEP: Final = b"[" * 200_000
_ROW: Final = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": %s, "data": %s}]}'
_BINARY: Final = (
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], '
    b'"parameters": {"binary_data_size": %s}}]}'
)
_STRING: Final = (
    b'{"inputs": [{"name": "words", "datatype": "BYTES", "shape": [1, 1], '
    b'"parameters": {"binary_data_size": 4}}]}'
)

_LONG_TEXT: Final = b'["' + b"a" * 20_000 + b'"' + b',""' * 8000 + b"]"
_CONTEXT: Final = b'{"context": {"%s": %s}, "examples": [' + b"{}," * 4000 + b"{}]}"
_MANY: Final = b"[" + b"1," * 4000 + b"1]"

CORPUS: Final[dict[str, tuple[str, Any]]] = {
    "v2 deep": ("v2", (b'{"inputs": ' + _DEEP, None)),
    "v2 deep data": ("v2", (_ROW % (b"[1, 2]", _DEEP + b"]" * 200_000), None)),
    "v2 shape overflows": ("v2", (_ROW % (b"[9223372036854775807, 2]", b"[]"), None)),
    "v2 shape wraps to zero": ("v2", (_ROW % (b"[4294967296, 4294967296, 2]", b"[]"), None)),
    "v2 shape of a million sizes": ("v2", (_ROW % (b"[" + b"9," * 1_000_000 + b"9]", b"[]"), None)),
    "v2 deeper than arrays": ("v2", (_ROW % (b"[1, 2]", b"[" * 80 + b"1" + b"]" * 80), None)),
    "v2 negative size": ("v2", (_ROW % (b"[-1, 2]", b"[1, 2]"), None)),
    "v2 huge and empty": ("v2", (_ROW % (b"[0, 1099511627776]", b"[]"), None)),
    "v2 long text among short ones": ("v2", (_ROW % (b"[1, 2]", _LONG_TEXT), None)),
    "v2 long text in a column": ("v2", (_ROW % (b"[1, 2]", _LONG_TEXT.replace(b",", b"],[")), None)),
    "v2 half a letter beside a token": (
        "v2",
        (
            b'{"x": NaN, "inputs": [{"name": "words", "datatype": "BYTES", "shape": [1, 1], '
            b'"data": ["\\ud800"]}]}',
            None,
        ),
    ),
    "v2 long integer": ("v2", (_ROW % (b"[1, 2]", b"[1, 1" + b"0" * 5000 + b"]"), None)),
    "v2 number that is no float": ("v2", (_ROW % (b"[1, 2]", b"[1e999, -1e999]"), None)),
    "v2 lone surrogate": ("v2", (b'{"id": "\\ud800", "inputs": []}', None)),
    "v2 not UTF-8": ("v2", (b'{"id": "\xff"}', None)),
    "v2 header longer than the body": ("v2", (b"{}", "99999999999999999999")),
    "v2 header of other digits": ("v2", (b"{}", "\u0663")),
    "v2 header that cuts a letter": ("v2", ('{"id": "é"}'.encode(), "9")),
    "v2 binary size of 2^64": ("v2", (_BINARY % b"18446744073709551616", str(len(_BINARY % b"0")))),
    "v2 binary size that is true": ("v2", (_BINARY % b"true", str(len(_BINARY % b"true")))),
    "v2 raw": ("v2", (b"\x00" * 7, "0")),
    "v2 string longer than the body": ("v2", (_STRING + b"\xff\xff\xff\xff", str(len(_STRING)))),
    "v1 deep": ("v1", b'{"instances": ' + _DEEP),
    "v1 deeper than arrays": ("v1", b'{"instances": ' + b"[" * 80 + b"1" + b"]" * 80 + b"}"),
    "v1 columns deeper than arrays": ("v1", b'{"inputs": ' + b"[" * 80 + b"1" + b"]" * 80 + b"}"),
    "v1 long text among short ones": ("v1", b'{"instances": ' + _LONG_TEXT + b"}"),
    "v1 context of many values": ("v1", _CONTEXT % (b"x", _MANY)),
    "v1 context of a long text": ("v1", _CONTEXT % (b"words", b'["' + b"a" * 20_000 + b'"]')),
    "v1 context of another name": ("v1", _CONTEXT % (b"c", _MANY)),
    "v1 empty": ("v1", b""),
    "v1 more behind": ("v1", b'{"instances": [[1, 2]]} {"x": ' + _DEEP),
    "v1 token": ("v1", b'{"instances": [[NaN, -Infinity]]}'),
    "v1 token that is cut": ("v1", b'{"instances": [[NaN, -Infin'),
    "v1 base64 that is none": ("v1", b'{"instances": [[{"b64": "\xc3\xa9"}]]}'),
    "v1 no UTF-16": ("v1", '{"instances": [[1, 2]]}'.encode("utf-16")),
    "scoring deep": ("scoring", b'{"data": ' + _DEEP),
    "scoring deeper than arrays": ("scoring", b'{"data": ' + b"[" * 80 + b"1" + b"]" * 80 + b"}"),
    "scoring other lengths": ("scoring", b'{"data": [[1, 2], [3]]}'),
    "scoring empty lists": ("scoring", b'{"data": [[], []]}'),
    "scoring long text among short ones": ("scoring", b'{"data": ' + _LONG_TEXT + b"}"),
    "scoring one input many times": (
        "scoring",
        b'{"data": {"a": [' + b"[1, 2], " * 20_000 + b"[1, 2]]" + b', "a": 0' * 20_000 + b', "b": [1]}}',
    ),
    "scoring null": ("scoring", b"null"),
    "arrays of objects": ("arrays", _saved(np.zeros(2, "S3"))),
    "arrays pickled": (
        "arrays",
        _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n"),
    ),
    "arrays of a size that overflows": (
        "arrays",
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 4), }"),
    ),
    "arrays of a negative size": (
        "arrays",
        _npy("{'descr': '<f4', 'fortran_order': True, 'shape': (-1, 2), }"),
    ),
    "arrays of a true size": (
        "arrays",
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2), }", bytes(8)),
    ),
    "arrays whose header is code": ("arrays", _npy("__import__('os').getpid()")),
    "arrays whose header is deep": ("arrays", _npy("(" * 9000)),
    "arrays whose header is cut": (
        "arrays",
        (b"\x93NUMPY\x01\x00\xff\xff{", {"content-type": "application/x-npy"}),
    ),
    "arrays of fields": (
        "arrays",
        _npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", bytes(4)),
    ),
    "arrays whose numbers end early": (
        "arrays",
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", bytes(7)),
    ),
    "messages empty": ("messages", b""),
    "messages of no field": ("messages", b"\x00\x00"),
    "messages with a group": ("messages", b"\x0a\x01m\x3b\x3c"),
    "messages with an endless length": ("messages", b"\x3a" + b"\xff" * 20),
    "messages with a length of 4 GiB": ("messages", b"\x3a\xff\xff\xff\xff\x0f"),
    "messages with a long zero": ("messages", b"\x3a\x80\x80\x80\x80\x00"),
    "messages cut in a length": ("messages", b"\x0a\x80"),
    "messages not UTF-8": ("messages", b"\x0a\x02\xff\xfe"),
    "messages with a name that is given twice": ("messages", b"\x0a\x01x\x0a\x01m"),
    "messages of a shape that overflows": (
        "messages",
        _message(inputs=[_x([2**62, 4])], raw_input_contents=[b""]),
    ),
    "messages of a million sizes": ("messages", _message(inputs=[_x([9] * 1_000_000)])),
    "messages of a negative size": ("messages", _message(inputs=[_x([-1, 2], fp32_contents=[1, 2])])),
    "messages huge and empty": ("messages", _message(inputs=[_x([0, 2**40])], raw_input_contents=[b""])),
    "messages of raw and typed contents": (
        "messages",
        _message(inputs=[_x([1, 2], fp32_contents=[1, 2])], raw_input_contents=[bytes(8)]),
    ),
    "messages of two fields": (
        "messages",
        _message(inputs=[_x([1, 2], fp32_contents=[1, 2], int_contents=[1])]),
    ),
    "messages with an input of nothing": (
        "messages",
        _message(inputs=[_x([1, 2], fp32_contents=[1, 2])]) + b"\x2a\x02\x2a\x00",
    ),
    "messages with more contents than inputs": (
        "messages",
        _message(inputs=[_x([1, 2])], raw_input_contents=[bytes(8), bytes(8)]),
    ),
    "inflation of a bomb": ("inflation", (gzip.compress(bytes(1 << 24)) * 3, "gzip")),
    "inflation of many members": ("inflation", (gzip.compress(b"") * 3000, "gzip")),
    "inflation that is cut": ("inflation", (gzip.compress(b"abc" * 100)[:-5], "gzip")),
    "inflation with a wrong sum": ("inflation", (gzip.compress(b"abc")[:-8] + bytes(8), "gzip")),
    "inflation of a dictionary that nobody has": ("inflation", (b"\x78\xbb\x00\x00\x00\x01", "deflate")),
    "inflation with something behind": ("inflation", (zlib.compress(b"abc") + b"x", "deflate")),
    "inflation of nothing": ("inflation", (b"", "gzip")),
}
"""The decoder and the body of each case."""


@pytest.mark.parametrize("case", CORPUS)
def test_corpus_case_is_decoded_or_refused(case: str) -> None:
    """Each case is decoded or refused as the caller's fault, in time."""
    decoder, body = CORPUS[case]
    DECODERS[decoder].check(body)


@pytest.mark.parametrize("case", CORPUS)
def test_memory_for_a_body_is_bounded_by_its_length(case: str) -> None:
    """Decoding takes memory in proportion to the body."""
    decoder, body = CORPUS[case]
    size_bytes = len(body[0] if isinstance(body, tuple) else body)
    tracemalloc.start()
    try:
        DECODERS[decoder].check(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * size_bytes + (4 << 20)


@pytest.mark.parametrize("name", DECODERS)
def test_a_few_bodies_of_each_kind(name: str) -> None:
    """The same ones each time: the fuzz itself takes minutes, and must not be found broken then."""
    bodies, check = DECODERS[name]
    few = settings(
        max_examples=30,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    few(given(bodies)(check))()
