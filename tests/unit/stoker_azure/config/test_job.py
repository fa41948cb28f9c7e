"""Command jobs of Azure's CLI v2, as run configurations."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.errors import InvalidSettings
from stoker_azure.config.job import CommandJob


def read(folder: Path, **keys: Any) -> CommandJob:
    """Read a job with these keys; its code is in `src`."""
    (folder / "src").mkdir(exist_ok=True)
    file = folder / "job.yml"
    file.write_text(yaml.safe_dump({"code": "src", "command": "python train.py", **keys}))
    return CommandJob.from_file(file)


def test_a_job_is_a_run_configuration(tmp_path: Path) -> None:
    """All that a run can have; paths are taken from the file's folder."""
    job = read(
        tmp_path,
        command="python train.py --lr ${{inputs.lr}} --data ${{ inputs.digits }} --to ${{outputs.model}} 'a b' "
        "${{outputs.plots}}",
        inputs={
            "lr": 0.1,
            "digits": {"type": "uri_folder", "path": "data"},
            "known": {"path": "azureml:mnist:3"},
            "there": {"path": "s3://bucket/digits"},
            "text": {"type": "string", "default": "x"},
            "old": {"path": "azureml://datastores/blobs/paths/old"},
        },
        outputs={
            "model": {"type": "uri_folder"},
            "plots": {"path": "azureml://datastores/blobs/paths/a/b", "mode": "upload"},
        },
        environment={"conda_file": "conda.yml", "image": "some/image:1"},
        environment_variables={"MODE": "fast"},
        compute="azureml:gpu-cluster",
        experiment_name="digits",
        tags={"a": "b"},
        name="third",
        resources={"instance_count": 2, "shm_size": "2g"},
        distribution={"type": "pytorch", "process_count_per_instance": 4},
        limits={"timeout": 600},
        identity={"type": "managed"},
    )
    assert job.source == tmp_path / "src"
    assert job.configuration == {
        "script": "train.py",
        "arguments": [
            *("--lr", "0.1", "--data", "$AZUREML_DATAREFERENCE_digits", "--to", "outputs/model", "a b"),
            "$AZUREML_DATAREFERENCE_plots",
        ],
        "inputs": {
            "digits": str(tmp_path / "data"),
            "known": "mnist:3",
            "there": "s3://bucket/digits",
            "old": "blobs/old",
        },
        "outputs": {"plots": "blobs/a/b"},
        "environment": {"file": str(tmp_path / "conda.yml"), "variables": {"MODE": "fast"}},
        "target": "gpu-cluster",
        "experiment": "digits",
        "tags": {"a": "b"},
        "nodes": 2,
        "processes_per_node": 4,
        "communicator": "pytorch",
        "max_duration": 600,
    }
    assert [note.split()[0] for note in job.notes] == [
        *("identity", "name", "resources.shm_size", "outputs.plots.mode", "the"),
    ]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"distribution": {"type": "ray"}},
            "distribution.type is 'ray', and can be mpi, pytorch, tensorflow",
        ),
        ({"type": "sweep"}, "jobs of type sweep are not read: .*'stoker tune'"),
        ({"type": "pipeline"}, "jobs of type pipeline are not read: .*'stoker submit'"),
        ({"type": "spark"}, "type must be command, not 'spark'"),
        ({"comand": "x"}, "there is no key comand"),
        ({"command": "python a.py && python b.py"}, "command is of a shell"),
        ({"command": "bash run.sh"}, "command must be 'python SCRIPT ...', not 'bash run.sh'"),
        ({"command": "python -m train"}, "command must be 'python SCRIPT ...'"),
        ({"command": None}, "command must be 'python SCRIPT ...', not ''"),
        ({"command": "python 'a.py"}, "command cannot be read: No closing quotation"),
        ({"command": "python a.py ${{inputs.x}}"}, "command names inputs.x, which there is not"),
        (
            {"inputs": {"x": {"path": "azureml://registries/a/data/b"}}},
            "inputs.x is at azureml://.*: copy it",
        ),
        (
            {"outputs": {"x": {"path": "/mnt/x"}}},
            "outputs.x is at /mnt/x, .*name a data store: azureml://datastores/NAME/paths/PATH",
        ),
        ({"inputs": {"x": {"type": "uri_file"}}}, "inputs.x has neither a path nor a value"),
        ({"inputs": [1]}, "inputs must be a mapping"),
        ({"environment": {"image": "a"}}, "environment must be azureml:NAME:VERSION, or have a conda_file"),
        ({"code": "none"}, "code none is no folder"),
    ],
)
def test_job_that_runs_no_script_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    """The error names the key and what to do."""
    with pytest.raises(InvalidSettings, match=said):
        read(tmp_path, **keys)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(InvalidSettings, match=r"there is no file .*job\.yml"):
        CommandJob.from_file(tmp_path / "job.yml")
