"""The summary of the start, also where standard output cannot be written."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tests.patience import PROGRAM_S
from tests.puppets import BODIES, ROWS

from stoker.deployment import Deployment
from stoker.models.placement import place
from stoker.script_form import ScriptForm
from stoker.settings.image_input import ImageInput
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor import summary as module
from stoker.supervisor.reports import DeviceReport, ModelReport, StartUp
from stoker.supervisor.summary import (
    _code_lines,
    curl_data,
    describe_batches,
    device_lines,
    frontend_line,
    replica_lines,
    sample_file,
    service_lines,
    summary,
)
from stoker.tensors import ModelTensors, Signature, TensorInfo

UNBATCHED = dataclasses.replace(
    BODIES,
    takes="tensors",
    tensors=ModelTensors(
        (TensorInfo("x", "float32", (1, 2)), TensorInfo("words", "string", (1,))), (), batched=False
    ),
)


def _deployment(name: str = "digits", **settings: object) -> Deployment:
    return Deployment(name, 1, "onnx", Path("x"), Path("y"), 64, 64, **settings)  # type: ignore[arg-type]


def _report(signature: Signature, devices: tuple[str, ...] = ("cpu",), **settings: object) -> ModelReport:
    placement = place(list(devices), len(devices), cores=2)
    deployment = _deployment(devices=placement.devices, shortfall=placement.shortfall, **settings)
    return ModelReport(deployment, signature, list(devices), 0.5, 0.25, 64)


def test_the_largest_batch_is_that_of_the_load() -> None:
    """A device may choose fewer rows than max_batch_rows, or have no memory for more."""
    assert (
        describe_batches(msgspec.structs.replace(_report(ROWS), max_batch_rows=48))
        == "batches of at most 48 rows"
    )


def test_model_that_is_never_batched_has_no_largest_batch() -> None:
    """A script without merging and a model without a free first axis take one request at a time."""
    alone, merged = (
        dataclasses.replace(BODIES, script=ScriptForm(max_requests=most_requests))
        for most_requests in (1, 32)
    )
    for signature in (alone, UNBATCHED):
        assert describe_batches(_report(signature)) == "one request after the other"
    assert describe_batches(_report(merged)) == "batches of at most 32 requests"


def test_a_model_of_declared_sizes_has_a_sample_of_zeros(tmp_path: Path) -> None:
    """Also one that is never batched; of one whose sizes are free nobody knows what it takes."""
    workspace = Workspace(tmp_path / "workspace")
    written = sample_file(workspace, _report(UNBATCHED))
    assert written is not None
    assert json.loads(written.read_text()) == {"data": {"x": [[0, 0]], "words": [""]}}
    free = ModelTensors((TensorInfo("x", "float32", (-1, -1)),), (), batched=True)
    assert sample_file(workspace, _report(dataclasses.replace(UNBATCHED, tensors=free))) is None


@pytest.mark.parametrize(
    ("name", "content", "curls"),
    [
        ("named.json", '{"data": [[1, 2]]}', "-d @"),
        ("array.npy", "", '-H "Content-Type: application/x-npy" --data-binary @'),
        ("rows.json", '{"instances": [[1, 2]]}', None),
        ("arrays.npz", "", None),
        ("digit.png", "", None),
    ],
)
def test_the_sample_of_a_model_is_shown_where_scoring_takes_it(
    tmp_path: Path, name: str, content: str, curls: str | None
) -> None:
    """Samples of other protocols are no bodies for `/score`: rows of zeros are shown in their place."""
    sample = tmp_path / name
    sample.write_text(content)
    workspace = Workspace(tmp_path / "workspace")
    shown = sample_file(workspace, _report(ROWS, sample_input=sample))
    assert shown is not None
    if curls is None:
        assert json.loads(shown.read_text()) == {"data": [[0, 0]]}
    else:
        assert shown == sample
        assert curl_data(shown).startswith(curls)
    image = ImageInput(1, 2, channels=1)
    with_images = sample_file(workspace, _report(ROWS, sample_input=sample, image=image))
    assert (with_images == sample) is (curls is not None or name == "digit.png")


def test_an_array_is_no_body_for_several_inputs(tmp_path: Path) -> None:
    """Only a model with one input takes one."""
    sample = tmp_path / "array.npy"
    sample.touch()
    shown = sample_file(Workspace(tmp_path / "workspace"), _report(UNBATCHED, sample_input=sample))
    assert shown is not None
    assert shown != sample
    assert shown.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("kind", "is_typed"), [("raw", True), ("string", False)])
def test_a_script_that_gets_the_whole_request_is_sent_the_media_type(
    tmp_path: Path, kind: Literal["raw", "string"], is_typed: bool
) -> None:
    """A handler of TorchServe reads a body by it, and curl's default is that of a form."""
    sample = tmp_path / "sample_input.json"
    sample.write_text("[0.1, 0.2]")
    report = _report(dataclasses.replace(BODIES, script=ScriptForm(kind)), sample_input=sample)
    lines = service_lines(ServerSettings(auth=False), Workspace(tmp_path), report, "http://x/score")
    (command,) = (line for line in lines if line.startswith("  try"))
    assert ('-H "Content-Type: application/json"' in command) is is_typed
    assert str(sample) in command


def test_script_without_a_sample_gets_a_body_to_fill_in(tmp_path: Path) -> None:
    """Only its author knows what its run() takes."""
    report = _report(dataclasses.replace(BODIES, script=ScriptForm()))
    lines = service_lines(ServerSettings(auth=False), Workspace(tmp_path), report, "http://x/score")
    assert lines[-2:] == [
        """  try      curl -s -d '{"data": [ROW, ...]}' http://x/score""",
        "           Fill in a body that run() takes, or keep one as sample_input.json beside the script.",
    ]


def test_commands_of_the_summary_can_be_pasted_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell gives each command its arguments, for any name of workspace and model."""
    workspace = Workspace(tmp_path / "my work's; $HOME")
    monkeypatch.setattr("shutil.which", lambda name: name)
    report = _report(ROWS, name="digits (2)")
    lines = service_lines(ServerSettings(), workspace, report, "http://[::1]:8080/score")
    (command,) = (line.partition("try")[2].strip() for line in lines if line.startswith("  try"))
    shell = 'curl() { printf "%s\\n" "$@"; }; stoker() { printf "%s|" "$@"; }; ' + command
    shown = subprocess.run(
        ["/bin/sh", "-c", shell], capture_output=True, text=True, check=True, timeout=PROGRAM_S
    )
    assert shown.stdout.splitlines() == [
        "-s",
        "-H",
        f"Authorization: Bearer keys|show|primary|--name|digits (2)|--workspace|{workspace.root}|",
        "-d",
        f"@{workspace.run_dir}/digits (2).sample_input.json",
        "http://[::1]:8080/score",
    ]


def test_addresses_have_names_percent_encoded(tmp_path: Path) -> None:
    """So that a client of any kind takes them as they are shown."""
    reports = [_report(ROWS, name=name) for name in ("größe (2)", "digits")]
    lines = summary(ServerSettings(), Workspace(tmp_path), 8080, StartUp([], reports, 1.0), {})
    uris = [line.split()[1] for line in lines if line.startswith("  scoring")]
    root = "http://127.0.0.1:8080/api/v1/service"
    assert uris == [f"{root}/gr%C3%B6%C3%9Fe%20%282%29/score", f"{root}/digits/score"]


@pytest.mark.parametrize(("only", "path"), [("digits", "/score"), (None, "/api/v1/service/digits/score")])
def test_the_only_model_has_the_short_address(tmp_path: Path, only: str | None, path: str) -> None:
    """If the settings have another one, which may come yet, its name is part of the address."""
    start_up = StartUp([], [_report(ROWS)], 1.0, only=only)
    assert f"  scoring  http://127.0.0.1:8080{path}" in summary(
        ServerSettings(), Workspace(tmp_path), 8080, start_up, {}
    )


@pytest.mark.parametrize(
    ("names", "count", "shown"),
    [(["a", "b"], "2 models on demand", "NAME"), (["a"], "1 model on demand", "a")],
)
def test_models_on_demand_are_counted(tmp_path: Path, names: list[str], count: str, shown: str) -> None:
    """They may be hundreds: one line says where and with which key each is scored."""
    start_up = StartUp([], [], 1.0, on_demand=names)
    assert start_up.served == count
    lines = summary(ServerSettings(memory_mb=200), Workspace(tmp_path), 8080, start_up, {})
    assert f"  memory   {count}, in memory_mb: 200" in lines
    assert f"  scoring  http://127.0.0.1:8080/api/v1/service/{shown}/score" in lines
    assert any(line.endswith(f"/{shown}.keys") for line in lines)


def test_the_link_to_the_console_signs_in_where_there_is_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, as in a log, the line has the bare address."""
    monkeypatch.setattr(module, "is_console_built", lambda: True)
    start_up = StartUp([], [_report(ROWS)], 1.0)
    for token, address in (("", "/console"), ("abc", "/console#token=abc")):
        lines = summary(ServerSettings(), Workspace(tmp_path), 8080, start_up, {}, token)
        assert f"  console  http://127.0.0.1:8080{address}" in lines
        assert any("signs in once, within 10 minutes" in line for line in lines) is bool(token)


def test_console_that_was_not_built_has_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what to do instead."""
    monkeypatch.setattr(module, "is_console_built", lambda: False)
    lines = summary(ServerSettings(), Workspace(tmp_path), 8080, StartUp([], [_report(ROWS)], 1.0), {}, "abc")
    (line,) = (line for line in lines if line.startswith("  console "))
    assert "server/console/build.py" in line
    assert "http" not in line


def test_processes_that_share_a_device_are_counted() -> None:
    """Each device is shown once for each reason; several processes on one share its memory or cores."""
    first = DeviceReport("cuda:0", "H200, 140 GiB", "as asked for")
    second = DeviceReport("cuda:1", "H200, 140 GiB", "as asked for")
    chosen = DeviceReport("cuda:0", "H200, 140 GiB", "the first GPU that can be used")
    cpu = DeviceReport("cpu", "EPYC, 2 cores", "as asked for")
    assert device_lines([first, second, chosen, cpu, cpu]) == [
        "  device   cuda:0: H200, 140 GiB (as asked for)",
        "  device   cuda:1: H200, 140 GiB (as asked for)",
        "  device   cuda:0: H200, 140 GiB (the first GPU that can be used)",
        "  device   cpu: EPYC, 2 cores (as asked for)",
        "           2 device processes share the memory of cuda:0",
        "           2 device processes share the cores",
    ]
    both = DeviceReport("cuda:0+cuda:1", "H200, 140 GiB + H200, 140 GiB", "as asked for")
    assert device_lines([both, first])[2:] == ["           2 device processes share the memory of cuda:0"]


@pytest.mark.parametrize(
    ("count", "cores", "text"),
    [
        (0, 2, "1 process (by the 2 cores; --frontends chooses)"),
        (2, 2, "2 processes (as asked for)"),
        (8, 2, "8 processes (more than the 2 cores: each request takes more CPU than with 1)"),
    ],
)
def test_the_number_of_frontends_has_its_reason(count: int, cores: int, text: str) -> None:
    """More frontends than cores cost more CPU, and the line says so."""
    assert frontend_line(count, cores) == f"  http     {text}"


@pytest.mark.parametrize(
    ("device", "replicas", "expected"),
    [
        ("cuda:0", 1, []),
        ("cuda:0", 3, ["3 replicas: 3 on cuda:0"]),
        (
            "cpu",
            3,
            [
                "2 replicas: 2 on cpu",
                "3 replicas were asked for, 2 run: on the CPU there is at most one for each core, and this server "
                "may use 2",
            ],
        ),
    ],
)
def test_replicas_are_shown_where_there_are_several_or_too_few(
    device: str, replicas: int, expected: list[str]
) -> None:
    """A model with one replica as asked for has no line about it."""
    placement = place([device], replicas, cores=2)
    deployment = _deployment(devices=placement.devices, shortfall=placement.shortfall)
    report = ModelReport(deployment, ROWS, list(placement.devices), 0.5, 0.25, 64)
    assert [line.strip() for line in replica_lines(report)] == expected


def test_files_that_run_code_are_named_in_one_line(tmp_path: Path) -> None:
    """Not scripts, which are code to look at; of many models the first five."""
    pickles = [
        dataclasses.replace(_deployment(f"m{number}"), framework="sklearn", path=Path(f"{number}.pkl"))
        for number in range(7)
    ]
    script = dataclasses.replace(_deployment("app"), framework="script", path=Path("score.py"))
    assert list(_code_lines([script, _deployment()])) == []
    (line,) = _code_lines([script, *pickles])
    assert "loading runs code of m0 (the code that the pickle 0.pkl names), m1 (" in line
    assert line.endswith("m4 (the code that the pickle 4.pkl names) and 2 more: serve what you trust")
