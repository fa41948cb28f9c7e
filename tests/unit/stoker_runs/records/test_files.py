"""The files of a run: Azure's names for logs, the script's for the rest, links left alone."""

from pathlib import Path

import pytest
from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker_runs.errors import SubmissionRefused
from stoker_runs.records.folder import RunFolder, copy_files, find_file, run_files


@pytest.fixture
def folder(make_run: MakeRun) -> RunFolder:
    run = make_run()
    attempt = run.attempt(1)
    for path, text in (
        (attempt / "log_0.txt", "zero"),
        (attempt / "log_1.txt", "one"),
        (attempt / "process_info.json", "{}"),
        (attempt / "files" / "plots" / "loss.png", "png"),
        (attempt / "work" / "outputs" / "live.txt", "live"),
        (run.outputs / "model" / "variables" / "v", "v"),
        (run.environment / "build.log", "built"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return run


def test_names_are_azures(folder: RunFolder) -> None:
    """Logs of several processes have their numbers; outputs are there while the script runs, and after."""
    assert list(run_files(folder)) == [
        "azureml-logs/20_image_build_log.txt",
        "azureml-logs/70_driver_log_0.txt",
        "azureml-logs/70_driver_log_1.txt",
        "azureml-logs/process_info.json",
        "outputs/live.txt",
        "outputs/model/variables/v",
        "plots/loss.png",
        "user_logs/std_log.txt",
    ]


def test_links_are_not_followed(folder: RunFolder, tmp_path: Path) -> None:
    """A script's links copy nothing: to files, to folders, and in place of its own outputs."""
    (folder.outputs / "passwd").symlink_to("/etc/passwd")
    (folder.outputs / "etc").symlink_to("/etc")
    folder.logs.rmdir()
    folder.logs.symlink_to("/etc")
    names = list(run_files(folder))
    assert not any("passwd" in name or "hosts" in name for name in names)
    copied = copy_files(folder, "outputs", tmp_path / "copy")
    assert copied == ["outputs/live.txt", "outputs/model/variables/v"]


def test_a_file_or_folder_is_found_by_its_name(folder: RunFolder) -> None:
    """An unknown name is refused with the names that exist."""
    assert find_file(folder, "outputs/model") == folder.outputs / "model"
    assert find_file(folder, "outputs/model/").is_dir()
    assert find_file(folder, "azureml-logs/70_driver_log_1.txt").read_text() == "one"
    for name in ("outputs/none", "../..", "/etc/passwd", ""):
        with pytest.raises(SubmissionRefused, match=r"it has: azureml-logs/20_image"):
            find_file(folder, name)
