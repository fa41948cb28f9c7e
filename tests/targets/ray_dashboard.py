"""A stand-in for the server of Ray's dashboard: it runs jobs as processes of this machine, without Ray."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["RayDashboard"]


@dataclass
class _Job:
    submission: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    was_stopped: bool = False

    @property
    def cores(self) -> float:
        return float(self.submission.get("entrypoint_num_cpus", 0))

    @property
    def status(self) -> str:
        if self.process is None:
            return "STOPPED" if self.was_stopped else "PENDING"
        if self.process.poll() is None:
            return "RUNNING"
        return "STOPPED" if self.was_stopped else "FAILED" if self.process.returncode else "SUCCEEDED"


@dataclass
class RayDashboard:
    """The server, with one node.

    Attributes:
        cores: Those of the node.
        token: What requests have to show; empty for nothing.
        active: How many nodes the autoscaler knows to be there.
        pending: What the autoscaler says that it has requested.
        faults: How many jobs are refused for now, as while a cluster starts.
    """

    cores: int = 4
    token: str = ""
    active: int = 1
    pending: int = 0
    faults: int = 0
    jobs: dict[str, _Job] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for name in list(self.jobs):
            self.end(name)

    @property
    def address(self) -> str:
        """The address that a target names."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def free(self) -> float:
        """The cores that no job has."""
        return self.cores - sum(job.cores for job in self.jobs.values() if job.status == "RUNNING")

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a request as Ray 2.60 does."""
        with self._lock:
            self._start_jobs()
            match [method, *path.partition("?")[0].strip("/").split("/")]:
                case ["GET", "api", "version"]:
                    return 200, {"version": "4", "ray_version": "2.60.0"}
                case ["GET", "api", "v0", "nodes"]:
                    node = {"node_id": "ab", "state": "ALIVE", "resources_total": {"CPU": self.cores}}
                    return 200, {"data": {"result": {"result": [node] if self.cores else []}}}
                case ["GET", "api", "cluster_status"]:
                    usage = {"Ab": {"CPU": [self.cores - self.free, self.cores]}}
                    report = {
                        "activeNodes": {"worker": self.active},
                        "pendingLaunches": {"worker": self.pending},
                        "pendingNodes": [],
                        "failedNodes": [],
                    }
                    load = {"usageByNode": usage}
                    return 200, {
                        "data": {"clusterStatus": {"autoscalerReport": report, "loadMetricsReport": load}}
                    }
                case ["POST", "api", "jobs"]:
                    return self._submit(body)
                case [_, "api", "jobs", name, *rest] if name in self.jobs:
                    return self._about(name, rest)
        return 404, f"Job {path} does not exist"

    def _submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["submission_id"]
        if name in self.jobs:
            return 500, f"Traceback\nValueError: Job with submission_id {name} already exists. Use another\n."
        if self.faults:
            self.faults -= 1
            return 500, "No available agent to submit job, please try again later."
        self.jobs[name] = _Job(body)
        self._start_jobs()
        return 200, {"submission_id": name}

    def _about(self, name: str, rest: list[str]) -> tuple[int, Any]:
        job = self.jobs[name]
        if rest == ["stop"]:
            self.end(name)
            return 200, {"stopped": True}
        if rest == ["logs"]:
            return 200, {
                "logs": job.process.stderr.read().decode() if job.process and job.process.stderr else ""
            }
        code = None if job.process is None else job.process.returncode
        return 200, {"status": job.status, "message": f"Job is {job.status}", "driver_exit_code": code}

    def _start_jobs(self) -> None:
        for job in self.jobs.values():
            if job.status == "PENDING" and job.cores <= self.free:
                job.process = subprocess.Popen(
                    job.submission["entrypoint"],
                    shell=True,
                    start_new_session=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )

    def end(self, name: str) -> None:
        """End a job as Ray does: all its processes are killed."""
        job = self.jobs[name]
        job.was_stopped = job.status in ("PENDING", "RUNNING")
        if job.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
            if job.process.stderr is not None:
                job.process.stderr.close()


def _handler(dashboard: RayDashboard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if dashboard.token and self.headers.get("Authorization") != f"Bearer {dashboard.token}":
                status, content = 401, "Unauthorized"
            else:
                status, content = dashboard.answer(self.command, self.path, json.loads(body or b"{}"))
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
