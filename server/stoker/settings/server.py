"""The settings of a server, and settings imported from files of other servers: frozen, and validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from stoker.errors import InvalidSettings
from stoker.settings.choices import WORDS, NonFinite
from stoker.settings.model import ModelSettings
from stoker.settings.model_limits import read_model_limits
from stoker.settings.pipelines import Pipeline
from stoker.settings.readers import (
    choice_of,
    number_of,
    read_audit,
    read_callback_hosts,
    read_device_batches,
    read_devices,
    read_endpoint,
    read_hosts,
    read_memory_mb,
    read_non_finite,
    read_origins,
    read_path,
    read_switch,
    read_text,
    setting,
)
from stoker.settings.traffic import PARITY_TOLERANCE, Endpoint, ParityMode, read_parity
from stoker.system.certificates import TlsFiles
from stoker.system.logs import LogFormat
from stoker.system.resources import usable_cores

OtlpProtocol = Literal["http/protobuf", "grpc"]
"""The protocols of OTLP in which traces are sent."""

SharedMemoryMode = Literal["off", "admin", "on"]
SharedMemoryPeers = Literal["loopback", "any"]

_MODES: Final = ("off", "admin", "on")
_PACKED_ON_DEMAND: Final = 40
_SHARE: Final = number_of(float, 0, 1)
_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def read_shared_memory(value: Any) -> SharedMemoryMode:
    """Return `off`, `admin` or `on`; YAML reads a bare `off` as false, and `on` as true.

    Raises:
        ValueError: It is another word.
    """
    word = {False: "off", True: "on"}[value] if isinstance(value, bool) else value
    if word not in _MODES:
        raise ValueError(f"must be {' or '.join(_MODES)}")
    return cast("SharedMemoryMode", word)


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """Settings imported from files and variables for another server; settings given to Stoker itself win.

    Attributes:
        source: Where they are from, for messages.
    """

    source: str
    server: Mapping[str, Any] = field(default_factory=dict)
    model: ModelSettings = ModelSettings()
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    endpoint: Endpoint | None = None
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server runs."""

    host: str = setting("127.0.0.1", read_text, "address to listen on", "ADDRESS")
    port: int = setting(8080, number_of(int, 0, 65535), "port to listen on; 0 takes a free one")
    frontends: int = setting(
        0, number_of(int, 0, 64), "HTTP processes; 0 (the default) is half of the cores, at most 8"
    )
    device: tuple[str, ...] = setting(
        ("auto",),
        read_devices,
        "auto, cpu, cuda:N, or the UUID of a GPU or MIG device; several with commas, each model runs on all; "
        "cuda:0+cuda:1 lets one process of an entry script see both",
        "DEVICE",
    )
    replicas: int = setting(
        0, number_of(int, 0, 64), "device processes of each model; 0 (the default) is one for each device"
    )
    device_batches: int | None = setting(
        None, read_device_batches, "batches to run at once per device: 1 to 8, or auto (the default)", "COUNT"
    )
    models_per_process: int | None = setting(
        None,
        number_of(int, 1, 1000),
        "ONNX models that may share a device process, also those loaded later (default: any number at the start, one "
        "later; with memory_mb 40)",
        "COUNT",
    )
    auth: bool = setting(True, read_switch, "require a key for scoring (default: yes)", "BOOL")
    token_auth: bool = setting(
        False,
        read_switch,
        "accept short-lived tokens for scoring; keys then fetch tokens (default: no)",
        "BOOL",
    )
    metrics_auth: bool = setting(False, read_switch, "require a key for /metrics (default: no)", "BOOL")
    open_metadata: bool = setting(
        False, read_switch, "metadata, index, statistics and swagger.json need no key (default: no)", "BOOL"
    )
    log_format: LogFormat = setting(
        "text", choice_of(*get_args(LogFormat)), "log lines as text or json", "FORM"
    )
    access_log_sample: float = setting(
        0.0, _SHARE, "share of scoring requests that are logged, 0 to 1 (default 0)", "SHARE"
    )
    otlp_endpoint: str | None = setting(
        None,
        read_endpoint,
        "OTLP receiver of traces, http://HOST:4318; also OTEL_EXPORTER_OTLP_ENDPOINT (default: no traces). "
        "OTEL_EXPORTER_OTLP_PROTOCOL chooses the protocol",
        "URL",
    )
    trace_ratio: float = setting(
        1.0,
        _SHARE,
        "share of the traces started here that are sent, 0 to 1; callers decide about theirs",
        "SHARE",
    )
    # Decision 66: the operator permits files that run code by naming them, or all by this setting.
    allow_pickle: bool = setting(
        False,
        read_switch,
        "load files of models that run code of their author, also in folders of models (default: no)",
        "BOOL",
    )
    console: bool = setting(True, read_switch, "serve the console at /console (default: yes)", "BOOL")
    docs: bool = setting(
        True, read_switch, "describe the API at /docs and /openapi.json (default: yes)", "BOOL"
    )
    max_body_mb: float = setting(
        100.0, number_of(float, 0.001, 1024), "maximum request body in MiB; the memory limits the sum of all"
    )
    max_image_mpx: float = setting(25.0, number_of(float, 0.001, 1000), "maximum image size in megapixels")
    timeout_ms: int = setting(60_000, number_of(int, 1, 3_600_000), "timeout of requests, answered with 504")
    memory_mb: int | Literal["auto"] | None = setting(
        None,
        read_memory_mb,
        "memory in MiB of each device (host memory on the CPU) for models, which are then loaded when asked for, or "
        "auto for what is free less a reserve (default: all are loaded at the start)",
        "MIB",
    )
    model_limits: Mapping[str, Mapping[str, float]] | None = setting(
        None,
        read_model_limits,
        'limits that models share by their names, as JSON: {"customer-*": {"rows_per_s": 500}} (default: none)',
        "LIMITS",
    )
    load_timeout_s: float = setting(
        600.0, number_of(float, 1, 86_400), "time limit for loading and warming up a model"
    )
    max_batch_rows: int = setting(256, number_of(int, 1, 65536), "maximum rows of a batch")
    max_delay_ms: float = setting(
        0.0,
        number_of(float, 0, 60000),
        "how long a row may wait for a fuller batch on a free device (default 0)",
    )
    non_finite: NonFinite = setting(
        WORDS,
        read_non_finite,
        "NaN and infinities in JSON: words (NaN, Infinity), null, or error (500)",
        "WHAT",
    )
    audit: float = setting(
        1e-4,
        read_audit,
        "share of batches of which a row is run again to check that batching is safe, or off",
        "RATE",
    )
    parity: ParityMode = setting(
        "off", read_parity, "compare a new version with its predecessor: off, warn or require", "HOW"
    )
    parity_tolerance: float = setting(
        PARITY_TOLERANCE,
        number_of(float, 0, 1e6),
        "allowed difference, relative to the largest number of an output",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        read_origins,
        "origins whose pages may read answers, with commas, or * (default: none); also AML_CORS_ORIGINS",
        "ORIGINS",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        read_hosts,
        "accepted Host names beside addresses and localhost, with commas, or * (default: all; without keys and TLS, "
        "the machine's own name)",
        "HOSTS",
    )
    drain_grace_s: float = setting(
        2.0, number_of(float, 0, 3600), "how long new requests are accepted after SIGTERM"
    )
    poll_s: float = setting(
        0.0,
        number_of(float, 0, 86_400),
        "how often to look for new and deleted versions; 0 (the default): never",
    )
    connection_age_s: float = setting(
        0.0,
        number_of(float, 0, 86_400),
        "age at which a connection is closed with its next answer, ± a fifth; 0 (the default): never",
    )
    trust_proxy_headers: bool = setting(
        False,
        read_switch,
        "accept deadlines and tiers from headers that a gateway sets and callers cannot (default: no)",
        "BOOL",
    )
    keys_dir: Path | None = setting(
        None,
        read_path,
        "folder with the keys in files primary, secondary, admin and signing, read again on change",
        "DIR",
    )
    exit_on_error: bool | None = setting(
        None,
        read_switch,
        "exit if a model cannot be loaded at start (default: yes for a single model)",
        "BOOL",
    )
    collect: bool = setting(
        False, read_switch, "collect requests and answers in the workspace (default: no)", "BOOL"
    )
    later_mb: float = setting(
        0.0,
        number_of(float, 0, 1 << 20),
        "disk budget in MiB of requests that are answered later, and their answers; 0 (the default): none are",
    )
    later_keep_s: float = setting(
        86_400.0,
        number_of(float, 1, 31_536_000),
        "how long after its arrival such a request is answered and its answer kept",
    )
    callback_hosts: tuple[str, ...] = setting(
        (),
        read_callback_hosts,
        "hosts that may be told of answers, NAME, *.NAME or *, and networks that are not public, with commas "
        "(default: none)",
        "HOSTS",
    )
    grpc_port: int = setting(
        0,
        number_of(int, 0, 65535),
        "port for the Open Inference Protocol over gRPC; 0 (the default): no gRPC",
    )
    management_port: int = setting(
        0,
        number_of(int, 0, 65535),
        "port for TorchServe's management API; 0 (the default): none",
    )
    tls_cert: Path | None = setting(
        None,
        read_path,
        "certificate chain (PEM): all ports then speak TLS only; read again on change",
        "FILE",
    )
    tls_key: Path | None = setting(
        None, read_path, "private key (PEM) of that certificate, without a password", "FILE"
    )
    tls_client_ca: Path | None = setting(
        None, read_path, "authorities (PEM) of the certificates that callers must show, on all ports", "FILE"
    )
    grpc_tls_cert: Path | None = setting(
        None, read_path, "certificate chain (PEM) of the gRPC port (default: tls_cert)", "FILE"
    )
    grpc_tls_key: Path | None = setting(None, read_path, "private key (PEM) of that certificate", "FILE")
    shared_memory: SharedMemoryMode = setting(
        "off",
        read_shared_memory,
        "who may register shared memory for tensors: off (nobody), admin (with the admin key) or on (with any key)",
        "WHO",
    )
    # Containers that share /dev/shm, but not the network, need `any`: their requests come from no loopback address.
    shared_memory_peers: SharedMemoryPeers = setting(
        "loopback",
        choice_of("loopback", "any"),
        "whose requests may use it: loopback (this machine), or any",
        "PEERS",
    )
    models: tuple[ModelSettings, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    keys_file: str = ""
    """The file with the keys, if no variable has them."""
    admin_key: str | None = field(default=None, repr=False)
    """The key for loading and unloading models, from STOKER_ADMIN_KEY; None for the workspace's."""
    model_defaults: ModelSettings = ModelSettings()
    """Defaults of models, which win over the server's settings."""
    endpoint: Endpoint | None = None
    """The endpoint whose deployments the models are, if they were made for one."""
    notes: tuple[str, ...] = ()
    """Lines for the operator about imported settings."""
    passed_over: tuple[str, ...] = ()
    """Lines for the operator about imported settings without effect."""
    unknown_variables: tuple[str, ...] = ()
    """Lines for the operator about variables with names similar to settings."""
    service_name: str | None = None
    """The name of the only service in descriptions; SERVICE_NAME."""
    service_version: str = "1.0"
    """The version in descriptions; SERVICE_VERSION."""
    service_path_prefix: str = ""
    """The prefix that a proxy puts before the paths of the only service, with a slash first; SERVICE_PATH_PREFIX."""
    tells_version: bool = True
    """Whether answers name the server's version; SERVER_VERSION_LOG_RESPONSE_ENABLED."""

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files of the HTTP port; None for plain HTTP."""
        return _tls_files("TLS", "tls", self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def grpc_tls(self) -> TlsFiles | None:
        """The same of the gRPC port: its own files, else those of HTTP."""
        if self.grpc_tls_cert is None and self.grpc_tls_key is None:
            return self.tls
        return _tls_files(
            "gRPC over TLS", "grpc_tls", self.grpc_tls_cert, self.grpc_tls_key, self.tls_client_ca
        )

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 2**20)

    @property
    def max_image_pixels(self) -> int:
        """`max_image_mpx` in pixels."""
        return round(self.max_image_mpx * 1e6)

    def ends_on_error(self, models: int) -> bool:
        """Whether the server exits if one of so many models cannot be loaded: `exit_on_error`, or its default."""
        return models <= 1 if self.exit_on_error is None else self.exit_on_error

    @property
    def given_keys(self) -> list[str]:
        """The environment variables that gave keys."""
        if self.keys_file:
            return []
        given = {"STOKER_PRIMARY_KEY": self.primary_key, "STOKER_SECONDARY_KEY": self.secondary_key}
        return [variable for variable, key in given.items() if key]

    @property
    def frontend_count(self) -> int:
        """`frontends`, resolved."""
        return self.frontends or default_frontends(usable_cores())

    @property
    def most_packed(self) -> int | None:
        """`models_per_process`, or its default, which models that are loaded on demand have."""
        return self.models_per_process or (None if self.memory_mb is None else _PACKED_ON_DEMAND)


def _tls_files(
    port: str, prefix: str, certificate: Path | None, key: Path | None, client_ca: Path | None
) -> TlsFiles | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidSettings(f"{port} needs both: {prefix}_cert and {prefix}_key")
    return TlsFiles(certificate, key, client_ca)


def default_frontends(cores: int) -> int:
    """Return the default number of frontends: half of the cores, for models and devices need some (decision 41)."""
    return max(1, min(8, cores // 2))


def otlp_protocol_of(environ: Mapping[str, str]) -> str:
    """Return the protocol in OpenTelemetry's variables, which may be an unknown one; HTTP by default."""
    return next((environ[name] for name in _VARIABLES if environ.get(name)), "http/protobuf")
