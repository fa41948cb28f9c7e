"""The ways of an imported model, and the default among them here and on other devices."""

import dataclasses
import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.deployment import Deployment
from stoker.errors import CorruptModel, InvalidSettings, LoadFailed
from stoker.models import way_choice
from stoker.models.deployments import resolve
from stoker.models.fetching import fetch_models
from stoker.models.frameworks import Detected
from stoker.models.registered import MANIFEST, Registered
from stoker.models.remote_writing import send
from stoker.models.repository import Repository
from stoker.models.way_choice import choose_default, choose_here, describe_place, objection
from stoker.models.way_measuring import Bench, measure_way
from stoker.models.ways import Way, WayResult, Ways
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace

TORCH = WayResult("torch", batched=True, one_row_ms=2.0, best_rows=8, best_ms=8.0)
ONNX = WayResult("onnx", batched=True, one_row_ms=1.0, best_rows=64, best_ms=32.0)
AOTI = WayResult("aoti", batched=True, one_row_ms=0.5, best_rows=64, best_ms=16.0)


def changed(result: WayResult, **fields: Any) -> WayResult:
    return WayResult(**{**{name: getattr(result, name) for name in WayResult.__slots__}, **fields})


def test_the_fastest_that_agrees_is_the_default() -> None:
    """By the time of one row and that of a row in the best batch, which count the same."""
    assert choose_default([TORCH, ONNX, AOTI], "torch", batched=True) == "aoti"
    slow_alone = changed(AOTI, one_row_ms=10.0)
    assert choose_default([TORCH, ONNX, slow_alone], "torch", batched=True) == "onnx"


@pytest.mark.parametrize(
    "fault",
    [
        {"problem": "its process ended with status -11"},
        {"differs": "its answers differ by up to 0.5 of the largest number"},
        {"batched": False, "isolation": "row 1 of 2 gets another answer"},
    ],
)
def test_a_way_that_crashes_differs_or_mixes_is_never_the_default(fault: dict[str, Any]) -> None:
    """Speed does not matter; the objection has the reason."""
    wrong = changed(AOTI, **fault)
    assert choose_default([TORCH, ONNX, wrong], "torch", batched=True) == "onnx"
    assert str(next(value for value in fault.values() if isinstance(value, str))) in objection(
        wrong, batched=True
    )
    assert choose_default([wrong], "torch", batched=True) == "torch"


def test_ways_may_mix_rows_where_the_original_does() -> None:
    """Then requests run one after the other in every way."""
    mixing = [changed(one, batched=False) for one in (TORCH, ONNX)]
    assert choose_default(mixing, "torch", batched=False) == "onnx"


WAYS = Ways(
    original="torch",
    default="onnx",
    place="cpu (of the importer); torch 1.0",
    tolerance=1e-3,
    max_batch_rows=64,
    batched=True,
    ways={"torch": Way("torch", "torch/net.pt2"), "onnx": Way("onnx", "onnx/model.onnx")},
    results=(TORCH, ONNX),
)


def bench(folder: Path) -> Bench:
    return Bench("net", folder, "cpu", 1e-3, 64, 60.0)


def never(*_: object) -> WayResult:
    raise AssertionError("nothing is to be measured")


def test_the_place_names_the_device_and_the_libraries() -> None:
    """A machine with another processor, or another version of a library, is another place."""
    place = describe_place("cpu")
    assert place.startswith("cpu (")
    assert place == describe_place("cpu")


def test_the_place_of_the_import_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of the import counts, without a note."""
    monkeypatch.setattr(way_choice, "describe_place", lambda _: WAYS.place)
    assert choose_here(WAYS, "0" * 64, bench(tmp_path), tmp_path / "cache", never) == ("onnx", "")


def test_on_another_device_the_ways_are_measured_once(tmp_path: Path) -> None:
    """The choice is kept by the digest of the files and the place; the note has the measurements."""
    measured = []

    def measure(name: str, way: Way, _: Bench) -> WayResult:
        measured.append(name)
        return changed(TORCH, one_row_ms=0.1) if name == "torch" else ONNX

    cache = tmp_path / "cache"
    chosen, note = choose_here(WAYS, "0" * 64, bench(tmp_path), cache, measure)
    assert (chosen, measured) == ("torch", ["torch", "onnx"])
    assert "onnx 1 ms, 32 ms for 64 rows" in note
    assert choose_here(WAYS, "0" * 64, bench(tmp_path), cache, never) == (chosen, note)
    choose_here(WAYS, "1" * 64, bench(tmp_path), cache, measure)
    assert measured == ["torch", "onnx"] * 2
    (cache / f"ways-{'0' * 16}.json").write_text("{")
    choose_here(WAYS, "0" * 64, bench(tmp_path), cache, measure)
    assert measured == ["torch", "onnx"] * 3


def test_a_way_that_failed_is_measured_at_the_next_starts(tmp_path: Path) -> None:
    """A failed way gets another chance, but is not measured more than three times."""
    measured: list[str] = []
    problems = {"torch": "", "onnx": "no memory"}

    def measure(name: str, way: Way, _: Bench) -> WayResult:
        measured.append(name)
        return changed(TORCH if name == "torch" else ONNX, problem=problems[name])

    def choose(digest: str) -> str:
        return choose_here(WAYS, digest * 64, bench(tmp_path), tmp_path / "cache", measure)[0]

    assert choose("0") == "torch"
    problems["onnx"] = ""
    assert (choose("0"), measured) == ("onnx", ["torch", "onnx", "onnx"])
    problems["onnx"] = "it crashes"
    measured.clear()
    assert {choose("1") for _ in range(5)} == {"torch"}
    assert measured == ["torch", "onnx", "onnx", "onnx"]


def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The choice counts; the next start measures again."""
    (tmp_path / "cache").write_text("a file")
    chosen, _ = choose_here(
        WAYS, "0" * 64, bench(tmp_path), tmp_path / "cache", lambda name, *_: changed(TORCH, way=name)
    )
    assert chosen in WAYS.ways
    assert "the next start measures again" in caplog.text


def test_a_process_that_crashes_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs is a result too: its way is left out, and the others go on."""
    monkeypatch.setattr("stoker.system.child_orders.sys.executable", "/bin/false")
    result = measure_way("onnx", WAYS.ways["onnx"], bench(tmp_path))
    assert "ended with status 1" in result.problem
    sleeps = tmp_path / "python"
    sleeps.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeps.chmod(0o755)
    monkeypatch.setattr("stoker.system.child_orders.sys.executable", str(sleeps))
    result = measure_way("onnx", WAYS.ways["onnx"], Bench("net", tmp_path, "cpu", 1e-3, 64, 0.1))
    assert "not loaded and measured within 0.1 s" in result.problem


@pytest.fixture
def imported(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registered:
    monkeypatch.setattr(way_choice, "describe_place", lambda _: WAYS.place)
    folder = tmp_path / "made"
    for way in WAYS.ways.values():
        file = folder / way.entry
        file.parent.mkdir(parents=True)
        file.write_bytes(b"model")
    return repository.register(
        "net",
        folder,
        now=datetime(2026, 11, 27, tzinfo=UTC),
        detected=Detected("onnx", folder / "onnx/model.onnx"),
        source="net.pt2",
        ways=WAYS,
    )


def served(workspace: Workspace, leases: ExitStack, **settings: Any) -> Deployment:
    model = ModelSettings(registered="net", given=frozenset(settings), **settings)
    (deployment,) = resolve(ServerSettings(models=(model,), device=("cpu",)), workspace, leases)
    return deployment


def test_the_default_is_served_and_others_by_name(
    imported: Registered, workspace: Workspace, leases: ExitStack, repository: Repository
) -> None:
    """`execution` names the way; its name does not go on to the runtime."""
    assert repository.get("net").ways == WAYS
    assert (imported.framework, imported.source) == ("onnx", "net.pt2")
    default = served(workspace, leases)
    assert (default.framework, default.path) == ("onnx", imported.files_dir / "onnx/model.onnx")
    other = served(workspace, leases, execution="torch")
    assert (other.framework, other.path) == ("torch", imported.files_dir / "torch/net.pt2")
    assert other.acceleration.execution == "auto"


def test_a_pushed_version_has_its_ways_wherever_it_lies(
    imported: Registered, workspace: Workspace, leases: ExitStack, tmp_path: Path
) -> None:
    """Its manifest counts, not the name of its folder, for instance one from an address."""
    pushed = (tmp_path / "store").as_uri()
    send({name: imported.folder / name for name in (MANIFEST, *map(str, _files_of(imported)))}, pushed)
    settings = ServerSettings(models=(ModelSettings(path=Path(pushed)),), device=("cpu",))
    settings, _ = fetch_models(settings, workspace, lambda _: None, leases)
    (deployment,) = resolve(settings, workspace, leases)
    assert (deployment.name, deployment.version, deployment.framework) == ("net", 1, "onnx")
    assert deployment.path.parts[-2:] == ("onnx", "model.onnx")
    (model,) = settings.models
    named = dataclasses.replace(model, execution="torch", given=frozenset({"execution"}))
    (other,) = resolve(dataclasses.replace(settings, models=(named,)), workspace, leases)
    assert other.framework == "torch"


def _files_of(registered: Registered) -> list[Path]:
    return [path.relative_to(registered.folder) for path in registered.files_dir.rglob("*") if path.is_file()]


def test_an_unknown_way_is_refused(imported: Registered, workspace: Workspace, leases: ExitStack) -> None:
    """The message has the ways of the model; models that were not imported have none."""
    with pytest.raises(InvalidSettings, match=r"net:1 has no way aoti; its ways are torch, onnx"):
        served(workspace, leases, execution="aoti")
    plain = imported.files_dir / "onnx/model.onnx"
    settings = ModelSettings(path=plain, execution="onnx", given=frozenset({"execution"}))
    with pytest.raises(InvalidSettings, match="was not imported"):
        resolve(ServerSettings(models=(settings,), device=("cpu",)), workspace, leases)


def test_a_manifest_cannot_name_files_elsewhere(imported: Registered, repository: Repository) -> None:
    """A way whose file has no checksum is refused, as is an unknown one."""
    manifest = imported.folder / MANIFEST
    content = json.loads(manifest.read_text())
    del content["checksum"]
    for entry in ("../../other", "onnx/gone.onnx"):
        content["ways"]["ways"]["torch"]["entry"] = entry
        manifest.chmod(0o600)
        manifest.write_text(json.dumps(content))
        with pytest.raises(CorruptModel):
            repository.get("net")


def test_a_failed_measurement_keeps_the_original(imported: Registered) -> None:
    """If no way can be measured, the original is served, and its load has the error."""

    def fail(name: str, *_: object) -> WayResult:
        return WayResult(name, problem=str(LoadFailed("no memory")))

    chosen, note = choose_here(
        Ways(**{**{name: getattr(WAYS, name) for name in Ways.__slots__}, "place": "elsewhere"}),
        imported.digest,
        bench(imported.files_dir),
        imported.folder.parent.parent / "cache",
        fail,
    )
    assert chosen == "torch"
    assert "no memory" in note
