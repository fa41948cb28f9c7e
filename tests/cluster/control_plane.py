"""A control plane of this machine: etcd, API server, controllers and scheduler, each as it is released."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from tests.cluster import tools
from tests.cluster.nodes import Nodes
from tests.live_server import free_port

__all__ = ["ControlPlane", "running"]

_TOKEN: Final = "of-the-administrator"
_TLS: Final = Path(__file__).parents[1] / "tls"
_CERTIFICATE, _KEY = "localhost.crt", "localhost.key"
_OF_SERVICES: Final = "10.0.0.1"
# On an idle machine each takes a moment.
_READY_WITHIN_S: Final = 180.0
_SEEN_WITHIN_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A control plane that runs, with simulated nodes.

    Attributes:
        uri: Where the API server answers.
        kubeconfig: A kubeconfig of an administrator; its contexts are `test`, whose namespace is `default`.
        api: Its API as plain HTTP, with the rights of an administrator: `api.get("/api/v1/pods")`.
        nodes: Its nodes, which only say that they run pods.
        certificate: Of the API server.
        away: `with away():` kills the API server, and starts it again after the body.
    """

    uri: str
    kubeconfig: Path
    api: httpx.Client
    nodes: Nodes
    certificate: Path
    away: Callable[[], AbstractContextManager[None]]

    def get(self, path: str) -> Any:
        """The object at a path of the API; None if there is none."""
        answer = self.api.get(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        return answer.json()

    def create(self, path: str, content: Any) -> Any:
        """Post an object to a collection."""
        answer = self.api.post(path, json=content)
        assert answer.is_success, answer.text
        return answer.json()

    def patch(self, path: str, content: Any) -> Any:
        """Merge content into an object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = self.api.patch(path, json=content, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()

    def eventually(self, path: str, holds: Any, within_s: float = _SEEN_WITHIN_S) -> Any:
        """Read the object at a path, None while there is none, until `holds` of it is true; returns it."""
        deadline_s = time.monotonic() + within_s
        while not holds(found := self.get(path)):
            assert time.monotonic() < deadline_s, f"{path} after {within_s:g} s: {found}"
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def running(
    folder: Path, *, controllers: Sequence[str] = (), address: str | None = None
) -> Iterator[ControlPlane]:
    """Start a control plane without nodes; it ends with the body.

    Args:
        folder: Where its data, its logs and its kubeconfig are kept.
        controllers: Further options of kube-controller-manager.
        address: Address of this machine at which pods reach the API server too; nobody else does by default.
    """
    etcd, peers, port = (free_port() for _ in range(3))
    uri = f"https://127.0.0.1:{port}"
    tls = _TLS if address is None else _own_tls(folder, address)
    kubeconfig = _kubeconfig(folder, uri, tls)
    (folder / "tokens.csv").write_text(f"{_TOKEN},admin,1,system:masters\n", encoding="utf-8")
    with contextlib.ExitStack() as started:
        _start(started, folder, "etcd", _etcd_options(folder, etcd, peers))
        options = _api_server_options(folder, etcd, port, tls, address)
        api_server = _start(started, folder, "kube-apiserver", options)
        headers = {"Authorization": f"Bearer {_TOKEN}"}
        context = ssl.create_default_context(cafile=str(tls / _CERTIFICATE))
        api = started.enter_context(
            httpx.Client(
                base_url=uri, headers=headers, verify=context, trust_env=False, timeout=httpx.Timeout(30.0)
            )
        )
        _await_ready(api, api_server, folder)

        @contextlib.contextmanager
        def away() -> Iterator[None]:
            _end(api_server)
            try:
                yield
            finally:
                _await_ready(api, _start(started, folder, "kube-apiserver", options), folder)

        same = ["--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0"]
        more = [
            f"--service-account-private-key-file={tls / _KEY}",
            f"--root-ca-file={tls / _CERTIFICATE}",
            # Simulated nodes do not beat.
            "--node-monitor-grace-period=24h",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            "--horizontal-pod-autoscaler-sync-period=1s",
            *controllers,
        ]
        _start(started, folder, "kube-controller-manager", [*same, *more])
        _start(started, folder, "kube-scheduler", [*same, "--kube-api-qps=300", "--kube-api-burst=600"])
        nodes = started.enter_context(Nodes(api))
        yield ControlPlane(uri, kubeconfig, api, nodes, tls / _CERTIFICATE, away)


def _etcd_options(folder: Path, port: int, peers: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def _own_tls(folder: Path, address: str) -> Path:
    """Make a certificate of the addresses at which pods reach the API server."""
    names = f"DNS:localhost,IP:127.0.0.1,IP:{_OF_SERVICES},IP:{address}"
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", _KEY]
    command = ["openssl", "req", "-x509", *key, "-out", _CERTIFICATE, "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-addext", f"subjectAltName={names}"], cwd=folder, check=True, capture_output=True
    )
    return folder


def _api_server_options(folder: Path, etcd: int, port: int, tls: Path, address: str | None) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        f"--bind-address={'127.0.0.1' if address is None else '0.0.0.0'}",
        # For documentation, so nobody's: endpoints may not be on the loopback interface.
        f"--advertise-address={address or '192.0.2.1'}",
        f"--secure-port={port}",
        f"--tls-cert-file={tls / _CERTIFICATE}",
        f"--tls-private-key-file={tls / _KEY}",
        f"--cert-dir={folder}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={tls / _CERTIFICATE}",
        f"--service-account-signing-key-file={tls / _KEY}",
        "--service-cluster-ip-range=10.0.0.0/16",
        # The address of simulated nodes is one of this machine.
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _start(started: contextlib.ExitStack, folder: Path, name: str, options: Sequence[Any]) -> Any:
    log = started.enter_context((folder / f"{name}.log").open("wb"))
    command = [str(tools.folder() / name), *map(str, options)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    started.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    # Nothing of it is kept, and a polite end takes seconds.
    process.kill()
    process.wait()


def _await_ready(api: httpx.Client, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            # All of it: the roles, and the namespaces that are there from the beginning.
            if api.get("/readyz").is_success and api.get("/api/v1/namespaces/default").is_success:
                return
        log = folder / "kube-apiserver.log"
        assert process.poll() is None, log.read_text(encoding="utf-8")[-4000:]
        assert time.monotonic() < deadline_s, log.read_text(encoding="utf-8")[-4000:]
        time.sleep(0.1)


def _kubeconfig(folder: Path, uri: str, tls: Path) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": uri, "certificate-authority": str(tls / _CERTIFICATE)}}
        ],
        "users": [{"name": "admin", "user": {"token": _TOKEN}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}
        ],
        "current-context": "test",
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file
