"""The promises of every engine, for any machine."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.live_server import marked_processes
from tests.targets.conftest import Bench

from stoker_runs.records.record import Output
from stoker_runs.targets.engine import Presence
from stoker_runs.targets.ray.engine import RayEngine

pytestmark = pytest.mark.targets

HELLO = "import os\nprint('hello')\nopen('outputs/model.txt', 'w').write('m')\nopen('logs/l.txt', 'w').write('l')\n"
COUNT = "print('started')\nopen('outputs/count', 'a').write('x')\n"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print("ready", flush=True)
time.sleep(300)
"""


def processes_of(run_id: str) -> list[int]:
    """Numbers of the processes of a run."""
    return [pid for pid, _ in marked_processes(f"STOKER_RUN_ID={run_id}")]


def test_a_check_of_a_machine_lists_its_parts(bench: Bench) -> None:
    """A check has lines, the first with its Python."""
    assert bench.engine.check()[0].startswith("Python 3.")


def test_a_script_runs_and_its_files_come_back(bench: Bench, tmp_path: Path) -> None:
    """Log, outputs and logs are in the run's folder; nothing is left where it worked."""
    job = bench.job(HELLO, tmp_path)
    assert bench.engine.observe(job).presence is Presence.ABSENT
    bench.start(job)
    sight = bench.finish(job)
    assert (sight.exit["outcome"], sight.exit["exit_status"]) == ("exited", 0)
    assert bench.log(job.folder) == "hello\n"
    assert (job.folder.outputs / "model.txt").read_text() == "m"
    assert (job.folder.logs / "l.txt").read_text() == "l"
    assert not (job.place / "work").exists()


def test_repeated_calls_of_an_engine_act_once(bench: Bench, tmp_path: Path) -> None:
    """Each function may be called again: the script is started once, its files come once."""
    job = bench.job(COUNT, tmp_path)
    for _ in range(2):
        bench.start(job)
    for _ in range(2):
        assert bench.finish(job).exit["exit_status"] == 0
    bench.engine.start(job)
    assert bench.log(job.folder) == "started\n"
    assert (job.folder.outputs / "count").read_text() == "x"


def test_a_failing_script_says_why(bench: Bench, tmp_path: Path) -> None:
    """Its outputs have status and traceback."""
    job = bench.job("raise ValueError('no data')\n", tmp_path)
    bench.start(job)
    report = bench.finish(job).exit
    assert (report["outcome"], report["exit_status"]) == ("exited", 1)
    assert report["traceback"].strip().endswith("ValueError: no data")


def test_script_that_ignores_sigterm_is_killed_with_its_children(bench: Bench, tmp_path: Path) -> None:
    """A script that ignores SIGTERM, and its child in a session of its own, are gone after the grace."""
    job = bench.job(STUBBORN, tmp_path)
    bench.start(job)
    bench.wait_for_output(job, "ready")
    assert len(processes_of(job.record.id)) >= 2
    for _ in range(2):
        bench.engine.stop(job, 1.0, "canceled")
    report = bench.finish(job).exit
    assert (report["outcome"], report["reason"]) == ("stopped", "canceled")
    assert processes_of(job.record.id) == []


def test_arguments_and_variables_arrive_as_they_are(bench: Bench, tmp_path: Path) -> None:
    """Spaces, quotes, newlines and letters of the world go through no shell."""
    odd = ("a b", "it's", '"$HOME"', "new\nline", "größe", "*", "")
    script = "import json, os, sys\nfound = [os.environ[name] for name in ('ODD', 'CUDA_VISIBLE_DEVICES')]\n"
    script += "print(json.dumps([sys.argv[1:], *found]))\n"
    job = replace(bench.job(script, tmp_path, arguments=odd, variables={"ODD": "x\ny'"}), gpus=("3", "1"))
    bench.start(job)
    bench.finish(job)
    assert json.loads(bench.log(job.folder)) == [list(odd), "x\ny'", "3,1"]
    assert (job.place / "start.json").stat().st_mode & 0o077 == 0


def test_a_script_changes_no_snapshot(bench: Bench, tmp_path: Path) -> None:
    """A script writes to a copy of its files."""
    job = bench.job("open('train.py', 'w').write('gone')\n", tmp_path)
    bench.start(job)
    assert bench.finish(job).exit["exit_status"] == 0
    assert "open(" in (bench.workspace.snapshots_dir / job.record.snapshot / "train.py").read_text()


def test_odd_outputs_stay_inside(bench: Bench, tmp_path: Path) -> None:
    """Links are kept as links and lead nobody anywhere; names with newlines are names."""
    script = "import os\nos.symlink('/etc', 'outputs/etc')\nopen('outputs/new\\nline', 'w').write('1')\n"
    job = bench.job(script, tmp_path)
    bench.start(job)
    bench.finish(job)
    assert (job.folder.outputs / "new\nline").read_text() == "1"
    link = job.folder.outputs / "etc"
    assert link.is_symlink() or not link.exists()
    assert Path("/etc/passwd").exists()


def test_the_next_attempt_goes_on_from_the_outputs_of_the_one_before(bench: Bench, tmp_path: Path) -> None:
    """They are where its own will be, and STOKER_RESUME_FROM says so."""
    script = (
        "import os\nfrom pathlib import Path\n"
        "print(os.environ.get('STOKER_RESUME_FROM', '') != '', sorted(p.name for p in Path('outputs').iterdir()))\n"
        "Path('outputs', 'epoch' + os.environ['STOKER_ATTEMPT']).write_text('x')\n"
    )
    first = bench.job(script, tmp_path, attempts=2)
    second = replace(first, attempt=2)
    for job in (first, second):
        bench.start(job)
        bench.finish(job)
    assert bench.log(first.folder) == "False []\n"
    assert bench.log(first.folder, attempt=2) == "True ['epoch1']\n"
    assert sorted(path.name for path in first.folder.outputs.iterdir()) == ["epoch1", "epoch2"]


def test_a_script_writes_into_folders_of_data_stores(bench: Bench, tmp_path: Path) -> None:
    """It finds them made, by argument and variable; they come back, also those of other processes."""
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "assert sys.argv[1] == os.environ['result'] == os.environ['AZUREML_DATAREFERENCE_result']\n"
        "Path(sys.argv[1], os.environ['RANK']).write_text('x')\n"
    )
    outputs = {"result": Output("store", "a", "outputs/result")}
    job = bench.job(
        script,
        tmp_path,
        arguments=("$AZUREML_DATAREFERENCE_result",),
        outputs=outputs,
        processes_per_node=2,
    )
    bench.start(job)
    assert bench.finish(job).exit["exit_status"] == 0
    assert sorted(path.name for path in (job.folder.outputs / "result").iterdir()) == ["0", "1"]


def test_several_processes_are_one_attempt(bench: Bench, tmp_path: Path) -> None:
    """Each has its rank and log; one that fails ends the others."""
    script = "import os, time\nrank = os.environ['RANK']\nprint(rank, os.environ['WORLD_SIZE'])\n"
    script += "assert rank == '0', rank\ntime.sleep(300)\n"
    job = bench.job(script, tmp_path, processes_per_node=2, grace_s=1.0)
    bench.start(job)
    report = bench.finish(job).exit
    assert (report["exit_status"], report["rank"]) == (1, 1)
    assert (job.place / "log_1.txt").read_text().startswith("1 2\n")


def test_nodes_find_each_other_and_do_not_share_outputs(bench: Bench, tmp_path: Path) -> None:
    """The variables of TensorFlow and PyTorch agree; files of the first process are the run's, others beside them."""
    script = (
        "import json, os\nfrom pathlib import Path\n"
        "config, rank = json.loads(os.environ['TF_CONFIG']), os.environ['RANK']\n"
        "workers = config['cluster']['worker']\n"
        "assert config['task'] == {'type': 'worker', 'index': int(rank)} and len(set(workers)) == 2\n"
        "assert workers[0] == os.environ['MASTER_ADDR'] + ':' + os.environ['MASTER_PORT']\n"
        "Path('outputs', 'rank').write_text(rank + os.environ['NODE_RANK'] + os.environ['LOCAL_RANK'])\n"
        "assert Path('train.py').is_file()\n"
    )
    if isinstance(bench.engine, RayEngine) and "RAY_AUTH_TOKEN" not in os.environ:
        pytest.skip("a stand-in for Ray's dashboard has no nodes; make test-ray has")
    job = bench.job(script, tmp_path, nodes=2)
    bench.start(job)
    assert bench.finish(job).exit["exit_status"] == 0, bench.log(job.folder)
    found = {
        path.relative_to(job.folder.outputs).as_posix(): path for path in job.folder.outputs.rglob("rank")
    }
    assert {name: path.read_text() for name, path in found.items()} == {"rank": "000", "rank_1/rank": "110"}
    assert not (job.place / "ranks").exists()
