"""Event files: what TensorBoard reads, byte for byte, and a folder with all that runs have for it."""

import math
import struct
from pathlib import Path

from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker_runs.records.exports import crc32c, event_record, write_logdir


def records(content: bytes) -> list[bytes]:
    """The events of a file, their lengths and checksums looked at."""
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = content[12 : 12 + length]
        for data, masked in ((content[:8], content[8:12]), (event, content[12 + length : 16 + length])):
            turned = (struct.unpack("<I", masked)[0] - 0xA282EAD8) & 0xFFFFFFFF
            assert crc32c(data) == ((turned << 15) | (turned >> 17)) & 0xFFFFFFFF
        found.append(event)
        content = content[16 + length :]
    return found


def test_the_checksum_is_castagnolis() -> None:
    """The value that its definition gives for a known text."""
    assert crc32c(b"123456789") == 0xE3069283


def test_an_event_is_as_tensorflow_writes_it() -> None:
    """Time, step beyond seven bits, name and value, each with its field; too large a value is the largest."""
    (event,) = records(event_record("loss", 0.5, 300, 1.5))
    scalar = b"\x0a\x04loss\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    assert event == b"\x09" + struct.pack("<d", 1.5) + b"\x10\xac\x02\x2a" + bytes([len(summary)]) + summary
    (event,) = records(event_record("loss", 1e300, 0, 0.0))
    assert math.isfinite(struct.unpack("<f", event[-4:])[0])


def test_a_log_folder_has_metrics_and_event_files_of_scripts(make_run: MakeRun, tmp_path: Path) -> None:
    """Each run has a folder; its earlier content is removed."""
    one = make_run(1, metrics=[{"k": "loss", "v": 0.5, "s": 3}, {"k": "loss", "v": "NaN", "s": 4}])
    (one.logs / "events.out.tfevents.1").write_bytes(b"")
    place = tmp_path / "board"
    (place / "old").mkdir(parents=True)
    assert write_logdir([one, make_run(2)], place) == place
    assert len(list(place.iterdir())) == 2
    first, value = records((place / one.id / "events.out.tfevents.0.stoker").read_bytes())
    assert b"brain.Event:2" in first
    assert b"loss" in value
    assert (place / one.id / "logs" / "events.out.tfevents.1").exists()
    assert not (place / one.id / "outputs").exists()
