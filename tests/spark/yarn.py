"""A stand-in for YARN, which no package index has: the programs that a head node has for it, by a real driver.

`spark-submit --deploy-mode cluster` unpacks archives into a folder of its own, as YARN does for a driver, and starts
the real spark-submit there, without the variables of who has called it. The cluster's file system is a folder.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from tests.spark.cluster import spark_home

__all__ = ["write_yarn"]

_SUBMIT = """#!{python}
import os, subprocess, sys, zipfile
from pathlib import Path
if "--version" in sys.argv:
    os.execv({real!r}, [{real!r}, "--version"])
words, options, kept = sys.argv[1:], {{}}, []
while words[0].startswith("--"):
    key, value = words[0], words[1]
    words = words[2:]
    if key == "--conf":
        kept += [key, value]
    else:
        options[key] = value
assert (options["--master"], options["--deploy-mode"]) == ("yarn", "cluster"), options
conf = dict(one.split("=", 1) for one in kept[1::2])
assert conf["spark.yarn.maxAppAttempts"] == "1"
name = options["--name"]
container = Path({folder!r}, "containers", name)
container.mkdir(parents=True)
(container / ".stoker").symlink_to(Path({folder!r}, "files", ".stoker"))
for one in options["--archives"].split(","):
    path, _, link = one.partition("#")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(container / link)
environ = {{"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "SPARK_LOCAL_IP": "127.0.0.1"}}
prefix = "spark.yarn.appMasterEnv."
environ.update((key[len(prefix):], value) for key, value in conf.items() if key.startswith(prefix))
command = [{real!r}, "--master", "local[1]", "--name", name, "--py-files", options["--py-files"], *words]
with (container / "stdout").open("wb") as log:
    driver = subprocess.Popen(
        command, cwd=container, env=environ, stdout=log, stderr=log, start_new_session=True
    )
(container / "pid").write_text(str(driver.pid))
sys.exit(1 if driver.wait() else 0)
"""
_YARN = """#!{python}
import os, signal, sys
from pathlib import Path
containers = sorted(Path({folder!r}, "containers").iterdir())
if sys.argv[1:] == ["application", "-list"]:
    print("Total number of applications: %d" % len(containers))
    for number, path in enumerate(containers):
        print("application_17000_%04d\\t%s\\t SPARK\\t RUNNING" % (number, path.name))
else:
    assert sys.argv[1:3] == ["application", "-kill"], sys.argv
    path = containers[int(sys.argv[3].rpartition("_")[2])]
    (path / "killed").touch()
    try:
        os.killpg(int((path / "pid").read_text()), signal.SIGKILL)
    except ProcessLookupError:
        pass  # Here the driver runs on the machine of the agent, whose SIGTERM it may have followed already.
"""
_HADOOP = """#!/bin/sh
set -e
cd {folder}/files
case "$1 $2" in
"fs -get") cp "$3" "$4" ;;
"fs -rm") rm "$4" ;;
*) exit 2 ;;
esac
"""


def write_yarn(folder: Path) -> Path:
    """Write the programs; returns the folder with them."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (folder / "files" / ".stoker").mkdir(parents=True)
    real = str(spark_home() / "bin" / "spark-submit")
    texts = {"spark-submit": _SUBMIT, "yarn": _YARN, "hadoop": _HADOOP}
    for name, text in texts.items():
        path = programs / name
        path.write_text(text.format(python=sys.executable, real=real, folder=str(folder)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return programs
