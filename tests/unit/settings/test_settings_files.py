"""Files with settings that no parser should follow to the end: each is refused in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.environments.conda_files import read_conda_file
from stoker.environments.files import read_environment
from stoker.errors import OperatorError
from stoker.models.labels import stored_labels
from stoker.models.registered import read_registered
from stoker.models.serving_config import read_batching_parameters, read_model_config
from stoker.models.swagger_files import read_swagger_file
from stoker.models.triton_config import read_triton_config
from stoker.samples.sample_files import describe_sample, read_sample
from stoker.scripts.mlflow_folder import MLMODEL, MlflowFolder
from stoker.settings.files import MOST_BYTES, parse_json, read_json, settings_text
from stoker.settings.yaml_files import read_yaml
from stoker.tensors import TensorInfo

DEEP = 100_000
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}]}}\n" for number in range(1, 12)
)
YAML = {
    "deep lists": "a: " + "[" * DEEP,
    "closed lists": "a: " + "[" * 150 + "]" * 150,
    "deep mappings": "a: " + "{a: " * DEEP,
    "deep blocks": "".join(f"{' ' * level}a:\n" for level in range(1500)),
    "a bomb of aliases": BOMB,
    "a bomb of merges": MERGED,
    "itself": "a: &a [*a]",
    "many digits": f"a: {'9' * 5000}",
    "a large number": f"a: {10**30}",
    "no date": "a: 2026-13-45",
    "no binary": "a: !!binary x",
    "a tag": "a: !!python/object:os.system {}",
    "no text": "a: \x00",
    "too long": "#" * (MOST_BYTES + 1),
}
JSON = {
    "deep lists": "[" * DEEP,
    "closed lists": '{"a": ' + "[" * 150 + "]" * 150 + "}",
    "deep objects": '{"a": ' * DEEP,
    "many digits": f'{{"a": {"9" * 5000}}}',
    "a large number": f'{{"a": -{10**30}}}',
    "a list": "[1]",
    "too long": " " * (MOST_BYTES + 1),
}
PBTXT = {
    "deep messages": "a {" * DEEP,
    "deep lists": "a: " + "[" * DEEP,
    "many digits": "max_batch_size: " + "9" * 5000,
    "a large number": f"max_batch_size: {10**30}",
    "a large size": f'input {{ name: "x" data_type: TYPE_FP32 dims: {1 << 64} }}',
    "hexadecimal digits": "max_batch_size: 0x" + "f" * 5000,
    "a text": "max_batch_size: " + '"a" ' * 10_000,
    "too long": "#" * (MOST_BYTES + 1),
}


def _yaml(file: Path) -> Any:
    return read_yaml(file, "deployment file", "settings by name")


def _beside(name: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read the folder in which a file has its own name."""

    def read_folder(file: Path) -> Any:
        file.rename(file.with_name(name))
        return read(file.parent)

    return read_folder


READERS: dict[str, tuple[Callable[[Path], Any], dict[str, str]]] = {
    "deployment": (_yaml, YAML),
    "conda": (read_conda_file, YAML),
    "MLmodel": (_beside(MLMODEL, MlflowFolder.read), YAML),
    "inferenceconfig": (read_json, JSON),
    "labels": (_beside("labels.json", stored_labels), JSON),
    "swagger": (read_swagger_file, JSON),
    "manifest": (_beside("manifest.json", lambda folder: read_registered(folder, "net", 1)), JSON),
    "config.pbtxt": (_beside("config.pbtxt", read_triton_config), PBTXT),
    "models.config": (read_model_config, PBTXT),
    "batching": (read_batching_parameters, PBTXT),
}


@pytest.mark.parametrize(
    ("reader", "excess"), [(reader, excess) for reader, (_, texts) in READERS.items() for excess in texts]
)
def test_unbounded_content_is_refused_in_a_sentence(tmp_path: Path, reader: str, excess: str) -> None:
    """All readers bound depth, aliases, lengths and numbers, and hide the parser's own message."""
    read, texts = READERS[reader]
    file = tmp_path / "file"
    file.write_text(texts[excess])
    with pytest.raises(OperatorError) as refused:
        read(file)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_aliases_that_are_used_stay(tmp_path: Path) -> None:
    """Aliases repeat a value that is written once."""
    file = tmp_path / "file.yaml"
    file.write_text("a: &a {x: 1, y: [1, 2]}\nb: *a\nc: {<<: *a, x: 2}\nd: 18446744073709551615\n")
    assert _yaml(file) == {
        "a": {"x": 1, "y": [1, 2]},
        "b": {"x": 1, "y": [1, 2]},
        "c": {"x": 2, "y": [1, 2]},
        "d": (1 << 64) - 1,
    }
    assert parse_json('{"a": [-18446744073709551615, 1e400]}') == {"a": [1 - (1 << 64), float("inf")]}


def make_irregular(file: Path, kind: str) -> None:
    """Make a file of another kind than a regular one."""
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("settings.yaml", lambda file: read_yaml(file, "file", "x")),
        ("settings.json", read_json),
        ("swagger.json", read_swagger_file),
        ("conda.yml", read_environment),
        ("requirements.txt", read_environment),
        ("MLmodel", lambda file: MlflowFolder.read(file.parent)),
        ("sample.npz", lambda file: read_sample(file, [TensorInfo("x", "float32", (-1, 4))])),
        ("sample.json", lambda file: describe_sample(file, ["x"])),
        ("config.pbtxt", lambda file: read_triton_config(file.parent)),
    ],
)
def test_file_that_is_not_regular_is_refused_at_once(
    tmp_path: Path, name: str, read: Callable[[Path], object], kind: str
) -> None:
    """A FIFO is not waited for, a device is not read to its end; each reader says that the file cannot be read."""
    make_irregular(tmp_path / name, kind)
    with pytest.raises(OperatorError, match="cannot be read"):
        read(tmp_path / name)


def test_pipe_of_the_shell_is_read_where_the_operator_names_it() -> None:
    """`--config <(command)` names a descriptor below /dev/fd."""
    reader, writer = os.pipe()
    os.write(writer, b"port: 1\n")
    os.close(writer)
    try:
        assert read_yaml(Path(f"/dev/fd/{reader}"), "file", "x") == {"port": 1}
    finally:
        os.close(reader)


def test_pipe_of_the_shell_is_bounded_too() -> None:
    """More than the maximum is refused."""
    with pytest.raises(OSError, match="more than"):
        settings_text(Path("/dev/zero"), 10)
