"""Examples written without TensorFlow, and read by it."""

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.wire.tfs_examples import entry_of, example_of

INT64S = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32)
FEATURES = st.lists(st.binary(max_size=300)) | st.lists(FLOATS) | st.lists(INT64S)

# The message's class is TensorFlow's own, but TensorFlow's import takes seconds: without what its package does first.
_READ = """
import json
import sys
from importlib.util import find_spec
from types import ModuleType

package = ModuleType("tensorflow")
package.__path__ = find_spec("tensorflow").submodule_search_locations
sys.modules["tensorflow"] = package
from tensorflow.core.example.example_pb2 import Example

for line in sys.stdin:
    features = Example.FromString(bytes.fromhex(line)).features.feature
    columns = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        columns[name] = [value.hex() if isinstance(value, (bytes, float)) else value for value in values]
    print(json.dumps(columns))
"""


def _read(data: bytes) -> tuple[int, int]:
    """A varint, and the bytes that it takes."""
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, place + 1
    raise AssertionError("the number does not end")


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message; all hold bytes."""
    fields = []
    while data:
        tag, used = _read(data)
        assert tag & 7 == 2
        size, more = _read(data[used:])
        start = used + more
        fields.append((tag >> 3, data[start : start + size]))
        assert len(fields[-1][1]) == size
        data = data[start + size :]
    return fields


def _values(feature: bytes) -> list[Any]:
    """The values of a `Feature`, read by the wire format alone."""
    if not feature:
        return []
    ((kind, listed),) = _fields(feature)
    values = _fields(listed)
    assert all(number == 1 for number, _ in values)
    if kind == 1:
        return [value for _, value in values]
    ((_, packed),) = values
    if kind == 2:
        return list(np.frombuffer(packed, "<f4").tolist())
    numbers = []
    while packed:
        number, used = _read(packed)
        numbers.append(number - (1 << 64) if number >= 1 << 63 else number)
        packed = packed[used:]
    return numbers


@settings(STEADY)
@given(st.dictionaries(st.text(), FEATURES, max_size=5))
def test_an_example_holds_its_features(features: dict[str, list[Any]]) -> None:
    """Read back by the wire format, name by name and value by value; NaN stays NaN."""
    ((number, entries),) = _fields(example_of(entry_of(name, values) for name, values in features.items()))
    assert number == 1
    back = {}
    for tag, entry in _fields(entries):
        (key, name), (value, feature) = _fields(entry)
        assert (tag, key, value) == (1, 1, 2)
        back[name.decode()] = _values(feature)
    assert repr(back) == repr(features)


@pytest.mark.parametrize("values", [[2**63], [-(2**63) - 1], [1e39]])
def test_a_number_that_does_not_fit_is_refused(values: list[Any]) -> None:
    """Nothing is cut off."""
    with pytest.raises(OverflowError):
        entry_of("a", values)


@pytest.mark.tensorflow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_reads_them() -> None:
    """Hundreds of examples, each as `tf.train.Example` has it."""
    import json

    examples: list[dict[str, list[Any]]] = []

    @settings(STEADY, max_examples=300)
    @given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), FEATURES, max_size=5))
    def collect(features: dict[str, list[Any]]) -> None:
        examples.append(features)

    collect()
    lines = "\n".join(
        example_of(entry_of(name, values) for name, values in features.items()).hex() for features in examples
    )
    done = subprocess.run(
        [sys.executable, "-c", _READ], input=lines, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    columns = [json.loads(line) for line in done.stdout.splitlines()]
    assert columns == [
        {
            name: [value.hex() if isinstance(value, bytes | float) else value for value in values]
            for name, values in features.items()
        }
        for features in examples
    ]
