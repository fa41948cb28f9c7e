"""Simulated nodes: they say of pods that these run, and nothing runs, or their command as a process of this machine.

One thread watches the pods of all nodes, another one does what is due: that a pod runs after the time that its image
takes to start, and is gone after the time that it takes to end. The logs of a pod are what a test has written.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import httpx
from tests.cluster import port_forward

__all__ = ["Behaviour", "Nodes"]

_TLS: Final = Path(__file__).parents[1] / "tls"
_WRITERS: Final = 8
_LOOK_AGAIN_S: Final = 0.2
_STATUS: Final = {"Content-Type": "application/strategic-merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What becomes of a pod.

    Attributes:
        start_s: Seconds until it is ready.
        end_s: Seconds until it is gone, once it has been deleted.
        waits: Why it never starts, as the kubelet calls it: `ImagePullBackOff`, `CrashLoopBackOff`.
        message: What the kubelet says of that.
        log: What the pod has written.
        address: A server of this machine that answers on each port of the pod; none by default.
        runs: Whether the command of the pod is run, as a process of this machine without the pod's volumes.
    """

    start_s: float = 0.05
    end_s: float = 0.05
    waits: str | None = None
    message: str = ""
    log: str = ""
    address: tuple[str, int] | None = None
    runs: bool = False


class Nodes:
    """All simulated nodes of a control plane.

    Args:
        api: The API, with the rights of an administrator.

    Attributes:
        behaviours: What becomes of pods, by the image of their first container; `usual` for all others.
        usual: What becomes of all others.
    """

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self.behaviours: dict[str, Behaviour] = {}
        self._said: dict[str, str] = {}
        self.usual = Behaviour()
        self._addresses = itertools.count(1)
        self._names: set[str] = set()
        self._known: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._ended = False
        self._writers = ThreadPoolExecutor(_WRITERS)
        self._logs = _log_server(self)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._watch, self._work, self._logs.serve_forever)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._logs.shutdown()
        self._logs.server_close()
        self._threads[1].join()
        for process in self._processes.values():
            _kill(process)
        self._writers.shutdown()

    # --- nodes ---

    def add(
        self,
        count: int,
        *,
        gpus: int = 1,
        prefix: str = "node",
        labels: Mapping[str, str] | None = None,
        resource: str = "nvidia.com/gpu",
    ) -> list[str]:
        """Add nodes, `PREFIX-0` and so on, each with GPUs; returns their names."""
        names = [f"{prefix}-{number}" for number in range(count)]
        self._names.update(names)
        contents = [_node(name, {resource: str(gpus)} if gpus else {}, labels or {}) for name in names]
        port = self._logs.server_address[1]
        list(self._writers.map(lambda content: self._add(content, port), contents))
        return names

    def remove(self, names: list[str]) -> None:
        """Remove nodes and all pods that are bound to them."""
        for name in names:
            self._api.delete(f"/api/v1/nodes/{name}")
        for pod in self._pods("?fieldSelector=spec.nodeName!=").get("items", []):
            if pod["spec"]["nodeName"] in names:
                self._gone(pod)

    def _add(self, content: dict[str, Any], port: int) -> None:
        name = content["metadata"]["name"]
        answer = self._api.post("/api/v1/nodes", json=content)
        assert answer.is_success, answer.text
        # Taken off by the controllers only for nodes that have ever been heard of, which these do once.
        status = {**content["status"], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        self._patch(f"/api/v1/nodes/{name}/status", {"status": status})

    # --- pods ---

    def behaviour_of(self, namespace: str, name: str) -> Behaviour:
        """What becomes of a pod, with what its command has written."""
        found = self._behaviour(self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}").json())
        return replace(found, log=self._said.get(name, found.log))

    def _behaviour(self, pod: Mapping[str, Any]) -> Behaviour:
        return self.behaviours.get(pod["spec"]["containers"][0]["image"], self.usual)

    def _pods(self, query: str) -> Any:
        return self._api.get(f"/api/v1/pods{query}").json()

    def _watch(self) -> None:
        while not self._ended:
            try:
                self._follow()
            except (httpx.HTTPError, json.JSONDecodeError, RuntimeError, KeyError):
                time.sleep(_LOOK_AGAIN_S)

    def _follow(self) -> None:
        listed = self._pods("?fieldSelector=spec.nodeName!=")
        for pod in listed["items"]:
            self._see(pod)
        version = listed["metadata"]["resourceVersion"]
        url = f"/api/v1/pods?watch=1&fieldSelector=spec.nodeName!=&resourceVersion={version}"
        with self._api.stream("GET", url, timeout=httpx.Timeout(30.0, read=None)) as events:
            for line in events.iter_lines():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._see(event["object"])
                elif event["type"] == "DELETED":
                    self._known.pop(event["object"]["metadata"]["uid"], None)
                if self._ended:
                    return

    def _see(self, pod: dict[str, Any]) -> None:
        """Do what is due of a pod: once that it starts, once that it ends. Other nodes may be real ones."""
        if pod["spec"]["nodeName"] not in self._names:
            return
        uid, behaviour = pod["metadata"]["uid"], self._behaviour(pod)
        if "deletionTimestamp" in pod["metadata"]:
            if self._known.get(uid) != "ends":
                self._known[uid] = "ends"
                if uid in self._processes:
                    self._processes[uid].terminate()
                self._later(behaviour.end_s, lambda: self._gone(pod))
        elif uid not in self._known:
            self._known[uid] = "starts"
            self._later(0 if behaviour.waits else behaviour.start_s, lambda: self._started(pod))

    def _started(self, pod: dict[str, Any]) -> None:
        if self._known.get(pod["metadata"]["uid"]) != "starts":
            return
        absent = self._absent_volume(pod)
        if absent is not None:
            self._say(pod, _waiting(pod, "ContainerCreating", absent))
            self._later(_LOOK_AGAIN_S, lambda: self._started(pod))
            return
        behaviour = self._behaviour(pod)
        if behaviour.waits:
            self._say(pod, _waiting(pod, behaviour.waits, behaviour.message))
        else:
            number = next(self._addresses)
            address = f"10.{128 + number // 65536}.{number // 256 % 256}.{number % 256}"
            self._say(pod, _running(pod, address))
            if behaviour.runs:
                threading.Thread(target=self._run, args=(pod, address), daemon=True).start()

    def _run(self, pod: dict[str, Any], address: str) -> None:
        """Run the command of a pod, and say how it has ended."""
        container = pod["spec"]["containers"][0]
        variables = {one["name"]: _variable(one, pod) for one in container.get("env", ())}
        command = [_filled(word, variables) for word in container["command"]]
        # A thread of its own for each, because a child that is told of its parent's end is told of its thread's.
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes[pod["metadata"]["uid"]] = process
        _, said = process.communicate()
        _kill(process)
        self._said[pod["metadata"]["name"]] = said.decode(errors="replace")
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            self._say(pod, _ended(pod, address, process.returncode))

    def kill(self, namespace: str, name: str) -> None:
        """Kill a pod's process, as the kernel does for lack of memory."""
        pod = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}").json()
        _kill(self._processes[pod["metadata"]["uid"]])

    def _absent_volume(self, pod: dict[str, Any]) -> str | None:
        """Which Secret or ConfigMap is not there, without which a kubelet does not start the pod."""
        namespace = pod["metadata"]["namespace"]
        for volume in pod["spec"].get("volumes", []):
            for kind, named, plural in (
                ("secret", "secretName", "secrets"),
                ("configMap", "name", "configmaps"),
            ):
                if kind not in volume or volume[kind].get("optional"):
                    continue
                name = volume[kind][named]
                if self._api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}").status_code == 404:
                    return (
                        f'MountVolume.SetUp failed for volume "{volume["name"]}" : {kind} "{name}" not found'
                    )
        return None

    def _gone(self, pod: dict[str, Any]) -> None:
        process = self._processes.pop(pod["metadata"]["uid"], None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pod["spec"]["terminationGracePeriodSeconds"])
            _kill(process)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._api.request("DELETE", f"{_path(pod)}", json=body)

    def _say(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        self._patch(f"{_path(pod)}/status", {"status": status})

    def _patch(self, path: str, content: dict[str, Any]) -> None:
        self._api.patch(path, content=json.dumps(content), headers=_STATUS)

    # --- what is due ---

    def _later(self, after_s: float, action: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + after_s, next(self._numbers), action))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if not self._ended and (wait_s is None or wait_s > 0):
                    self._changed.wait(wait_s)
                if self._ended:
                    return
                if not self._due or self._due[0][0] > time.monotonic():
                    continue
                _, _, action = heapq.heappop(self._due)
            self._writers.submit(_unless_ended, action)


def _unless_ended(action: Callable[[], None]) -> None:
    try:
        action()
    except (httpx.HTTPError, RuntimeError):
        # The API has ended first.
        return


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _node(name: str, devices: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    amounts = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110", **devices}
    now = _now()
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "nothing runs here"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
        },
    }


def _variable(one: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """The value of a variable of a pod, whose address is that of this machine."""
    if "value" in one:
        return str(one["value"])
    path = one["valueFrom"]["fieldRef"]["fieldPath"]
    if path == "status.podIP":
        return "127.0.0.1"
    kind, name = path.removeprefix("metadata.").removesuffix("']").split("['")
    return str(pod["metadata"][kind][name])


def _filled(word: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        word = word.replace(f"$({name})", value)
    return word


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the session of a process, whether it has ended or not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ended(pod: Mapping[str, Any], address: str, status: int) -> dict[str, Any]:
    """What is said of a pod whose command has ended; of one that was killed, that it had no memory."""
    running, now = _running(pod, address), _now()
    code = status if status >= 0 else 128 - status
    reason = "OOMKilled" if status == -signal.SIGKILL else "Error" if code else "Completed"
    ended = {"exitCode": code, "reason": reason, "finishedAt": now}
    containers = [
        {**one, "ready": False, "started": False, "state": {"running": None, "terminated": ended}}
        for one in running["containerStatuses"]
    ]
    conditions = [{**one, "status": "False"} for one in running["conditions"] if one["type"] != "Initialized"]
    phase = "Failed" if code else "Succeeded"
    return {**running, "phase": phase, "conditions": conditions, "containerStatuses": containers}


def _running(pod: Mapping[str, Any], address: str) -> dict[str, Any]:
    now = _now()
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "startTime": now,
        "conditions": [
            {"type": name, "status": "True", "lastTransitionTime": now}
            for name in ("Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": containers,
    }


def _waiting(pod: Mapping[str, Any], reason: str, message: str) -> dict[str, Any]:
    now = _now()
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "started": False,
            "restartCount": 5 if reason == "CrashLoopBackOff" else 0,
            "state": {"waiting": {"reason": reason, "message": message}},
        }
        for container in pod["spec"]["containers"]
    ]
    conditions = [
        {"type": name, "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": now}
        for name in ("ContainersReady", "Ready")
    ]
    return {"phase": "Pending", "startTime": now, "conditions": conditions, "containerStatuses": containers}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _log_server(nodes: Nodes) -> ThreadingHTTPServer:
    """What the API server asks of a kubelet: /containerLogs/NAMESPACE/POD/CONTAINER, /portForward/NAMESPACE/POD."""

    class Handler(BaseHTTPRequestHandler):
        # What comes behind the head is not the handler's: it may be a WebSocket.
        rbufsize = 0

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, action, namespace, name, *_ = url.path.split("/")
            query, behaviour = parse_qs(url.query), nodes.behaviour_of(namespace, name)
            if action == "containerLogs":
                self._answer_log(behaviour.log, query)
            elif action == "portForward" and behaviour.address is not None:
                self._forward(int(query["port"][0]), behaviour.address)
            else:
                self.send_error(404)

        def _answer_log(self, log: str, query: dict[str, list[str]]) -> None:
            lines = log.splitlines(keepends=True)
            text = "".join(lines[-int(query["tailLines"][0]) :] if "tailLines" in query else lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _forward(self, port: int, address: tuple[str, int]) -> None:
            self.close_connection = True
            self.protocol_version = "HTTP/1.1"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", port_forward.accepts(self.headers["Sec-WebSocket-Key"]))
            self.send_header("Sec-WebSocket-Protocol", port_forward.PROTOCOL)
            self.end_headers()
            with contextlib.suppress(OSError):
                port_forward.forward(self.connection, port, address)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_TLS / "localhost.crt", _TLS / "localhost.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
