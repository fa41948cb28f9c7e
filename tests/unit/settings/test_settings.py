"""Settings: their sources, their order, and refusals."""

import argparse
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from stoker.commands import serve
from stoker.errors import InvalidSettings
from stoker.settings.loading import add_server_options, load_settings
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.server import ImportedSettings, ServerSettings
from stoker.settings.traffic import Bounds


def load(
    tmp_path: Path,
    text: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    models: tuple[ModelSettings, ...] = (),
) -> ServerSettings:
    """Settings from a deployment file with this text, an environment and arguments."""
    file = None
    if text is not None:
        file = tmp_path / "deployment.yaml"
        file.write_text(text)
    return load_settings(arguments or {}, environ or {}, file, models)


def test_defaults_need_nothing(tmp_path: Path) -> None:
    """Without a file, an environment and arguments the documented defaults hold."""
    settings = load(tmp_path)
    assert settings == ServerSettings()
    assert (settings.host, settings.port, settings.device) == ("127.0.0.1", 8080, ("auto",))
    assert (settings.auth, settings.metrics_auth) == (True, False)
    assert (settings.max_batch_rows, settings.max_delay_ms, settings.timeout_ms) == (256, 0.0, 60_000)
    assert (settings.max_body_bytes, settings.models) == (100 * 2**20, ())


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("STOKER_PROT", "STOKER_PORT"),
        ("STOKER_MAX_DELAY", "STOKER_MAX_DELAY_MS"),
        ("STOKER_URL", None),
        ("STOKER_KEY", None),
        ("STOKER_WORKSPACE", None),
        ("STOKER_PORT_8080_TCP_PORT", None),
        ("STOKER_SERVICE_HOST", None),
        ("MY_STOKER_PROT", None),
    ],
)
def test_variable_similar_to_a_setting_gets_a_warning(
    tmp_path: Path, variable: str, meant: str | None
) -> None:
    """The summary has a misspelt variable; variables of others, such as Kubernetes', are ignored."""
    expected = () if meant is None else (f"{variable} is no setting and is not used; did you mean {meant}?",)
    assert load(tmp_path, environ={variable: "9000"}).unknown_variables == expected


@pytest.mark.parametrize(
    ("file", "variable", "argument", "port"),
    [
        (None, None, None, 8080),
        ("port: 1", None, None, 1),
        (None, "2", None, 2),
        (None, None, "3", 3),
        ("port: 1", "2", None, 2),
        ("port: 1", None, "3", 3),
        (None, "2", "3", 3),
        ("port: 1", "2", "3", 3),
        ("port: 1", "", None, 1),
    ],
)
def test_arguments_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, file: str | None, variable: str | None, argument: str | None, port: int
) -> None:
    """The nearest to the operator counts; an empty variable is none."""
    environ = {} if variable is None else {"STOKER_PORT": variable}
    arguments = {} if argument is None else {"port": argument}
    assert load(tmp_path, file, environ=environ, arguments=arguments).port == port


def test_sources_are_merged_setting_by_setting(tmp_path: Path) -> None:
    """A source that gives one setting leaves the others as they are; foreign names are none of ours."""
    settings = load(
        tmp_path,
        "port: 1\nhost: 0.0.0.0\nmax_batch_rows: 8\n",
        environ={"STOKER_PORT": "2", "STOKER_TIMEOUT_MS": "5", "PATH": "/bin", "STOKER_WORKSPACE": "/x"},
        arguments={"max_batch_rows": "16", "command": "serve", "verbose": True},
    )
    assert (settings.port, settings.host, settings.max_batch_rows, settings.timeout_ms) == (
        2,
        "0.0.0.0",
        16,
        5,
    )


def test_every_setting_has_its_variable_and_its_option(tmp_path: Path) -> None:
    """A setting is written once: its option, its variable and its key follow from the field."""
    given = {
        "host": "::1", "port": 1, "frontends": 2, "device": "cuda:1", "replicas": 3,
        "auth": False, "token_auth": True, "metrics_auth": True, "open_metadata": True, "collect": True,
            "console": False, "docs": False, "log_format": "json", "access_log_sample": 0.5,
        "otlp_endpoint": "http://127.0.0.1:4318", "trace_ratio": 0.25,
        "max_image_mpx": 2.5, "allow_pickle": True,
        "max_body_mb": 0.5, "timeout_ms": 3, "max_batch_rows": 4, "max_delay_ms": 1.5, "drain_grace_s": 0.25,
        "cors_origins": "https://a", "allowed_hosts": "a.example.com",
        "grpc_port": 4, "management_port": 5, "grpc_tls_cert": "/c.pem", "grpc_tls_key": "/k.pem",
        "tls_cert": "/hc.pem", "tls_key": "/hk.pem", "tls_client_ca": "/ca.pem",
        "poll_s": 2.5, "load_timeout_s": 30.0, "exit_on_error": False, "non_finite": "null", "audit": 0.25,
        "connection_age_s": 2.5, "trust_proxy_headers": True, "keys_dir": "/keys",
        "parity": "warn", "parity_tolerance": 0.5, "device_batches": 2, "models_per_process": 8,
        "shared_memory": "admin", "shared_memory_peers": "any", "later_mb": 2.5,
        "later_keep_s": 9.5, "callback_hosts": "example.com,10.0.0.0/8",
        "memory_mb": 7, "model_limits": '{"a-*": {"rows_per_s": 5}}',
    }  # fmt: skip
    assert {f.name for f in fields(ServerSettings) if f.metadata} == set(given)
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    options = [
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if not isinstance(value, bool)
    ]
    switches = [
        f"--{'' if value else 'no-'}{name.replace('_', '-')}"
        for name, value in given.items()
        if isinstance(value, bool)
    ]
    arguments = vars(parser.parse_args([*options, *switches]))
    pems = {name: Path(str(value)) for name, value in given.items() if "tls" in name or name == "keys_dir"}
    lists = {"device": ("cuda:1",), "cors_origins": ("https://a",), "allowed_hosts": ("a.example.com",)}
    lists["callback_hosts"] = ("example.com", "10.0.0.0/8")
    limits = {"model_limits": {"a-*": {"rows_per_s": 5.0}}}
    expected = ServerSettings(**{**given, **lists, **pems, **limits})
    assert load(tmp_path, arguments=arguments) == expected
    assert load(tmp_path, environ={f"STOKER_{n.upper()}": str(v) for n, v in given.items()}) == expected
    assert load(tmp_path, "\n".join(f"{name}: '{value}'" for name, value in given.items())) == expected
    assert (
        load(tmp_path, "\n".join(f"{n}: {str(v).lower()}" for n, v in given.items() if n != "host")).port == 1
    )


@pytest.mark.parametrize(
    ("text", "rate"),
    [("off", 0), ("'off'", 0), ("OFF", 0), ("0", 0), ("1", 1), ("1e-6", 1e-6), ("'0.5'", 0.5)],
)
def test_audits_are_off_or_a_share_of_all_batches(tmp_path: Path, text: str, rate: float) -> None:
    """YAML reads `off` as false; a model may say otherwise than the server."""
    settings = load(tmp_path, f"audit: {text}\nmodels:\n  - path: a\n    audit: {text}\n  - path: b\n")
    assert (settings.audit, [model.audit for model in settings.models]) == (rate, [rate, None])
    assert load(tmp_path, arguments={"audit": text.strip("'")}).audit == rate


@pytest.mark.parametrize("text", ["on", "-0.1", "1.5", "nan", "often", "true"])
def test_other_rates_of_audits_are_refused(tmp_path: Path, text: str) -> None:
    """Nobody means them."""
    with pytest.raises(InvalidSettings, match="audit"):
        load(tmp_path, f"audit: {text}")


def test_parity_is_set_for_the_server_and_models(tmp_path: Path) -> None:
    """By default nothing is; YAML reads `off` as false, and a model may say otherwise than the server."""
    settings = load(tmp_path, "parity: require\nmodels:\n  - path: a\n    parity: off\n  - path: b\n")
    assert (settings.parity, [model.parity for model in settings.models]) == ("require", ["off", None])
    assert load(tmp_path).parity == "off"
    with pytest.raises(InvalidSettings, match="parity must be off or warn or require, got 'on'"):
        load(tmp_path, arguments={"parity": "on"})


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("off", False), ("{}", Bounds()), ("{requests: 50, error_rate: 0}", Bounds(50, 0)), ("", None)],
)
def test_bounds_of_versions_with_weights(tmp_path: Path, text: str, bounds: Any) -> None:
    """Those that are not given have their defaults."""
    line = f"    rollback: {text}\n" if text else ""
    (model,) = load(tmp_path, f"models:\n  - path: a\n    canary: {{stable: 9, next: 1}}\n{line}").models
    assert (model.rollback, model.canary) == (bounds, {"stable": 9, "next": 1})


@pytest.mark.parametrize(
    "text",
    ["rollback: on", "rollback: {errors: 1}", "rollback: {requests: 1.5}", "rollback: {latency_ratio: 0.5}",
     "canary: {stable: -1}", "canary: {a b: 1}", "canary_by: 'x y'", "shadow: {next: 101}"],
)  # fmt: skip
def test_weights_and_bounds_that_mean_nothing_are_refused(tmp_path: Path, text: str) -> None:
    """The message names the setting."""
    with pytest.raises(InvalidSettings, match=text.partition(":")[0]):
        load(tmp_path, f"models:\n  - path: a\n    {text}\n")


@pytest.mark.parametrize("text", ["[cuda:0, cpu]", "cuda:0, cpu", "'cuda:0,cpu'"])
def test_devices_are_a_list_or_a_text_with_commas(tmp_path: Path, text: str) -> None:
    """A list in a file, and what fits an option and a variable, for the server and for a model."""
    settings = load(tmp_path, f"device: {text}\nmodels:\n  - path: a\n    replicas: 4\n    device: {text}\n")
    (model,) = settings.models
    assert (settings.device, settings.replicas) == (("cuda:0", "cpu"), 0)
    assert (model.device, model.replicas) == (("cuda:0", "cpu"), 4)


@pytest.mark.parametrize(
    "name",
    [
        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "MIG-5c7a4f6e-2b1d-5e0f-9a37-6d1c3b2a4f5e",
        "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
    ],
)
def test_gpus_and_mig_devices_are_named_by_uuid(tmp_path: Path, name: str) -> None:
    """As nvidia-smi -L prints them, also in the form of older drivers; beside other names."""
    assert load(tmp_path, f"device: [{name}, cuda:0]").device == (name, "cuda:0")


@pytest.mark.parametrize(
    ("environ", "origins"),
    [
        ({}, ()),
        ({"AML_CORS_ORIGINS": " https://a , https://b "}, ("https://a", "https://b")),
        ({"AML_CORS_ORIGINS": "*"}, ("*",)),
        ({"AML_CORS_ORIGINS": "https://a", "STOKER_CORS_ORIGINS": "https://c"}, ("https://c",)),
    ],
)
def test_origins_come_from_azures_variable_too(
    tmp_path: Path, environ: dict[str, str], origins: tuple[str, ...]
) -> None:
    """AML_CORS_ORIGINS is heeded, blanks around its commas are not; Stoker's own variable wins."""
    assert load(tmp_path, environ=environ).cors_origins == origins


@pytest.mark.parametrize("origin", ["https://a/", "https://a b", "https://é", "[1]"])
def test_origins_that_no_browser_sends_are_refused(tmp_path: Path, origin: str) -> None:
    """An origin ends with its host or port and has no blanks; the message shows one."""
    with pytest.raises(InvalidSettings, match=r"cors_origins must .*origins"):
        load(tmp_path, f"cors_origins: {origin}")


def test_descriptions_are_named_by_azures_variables(tmp_path: Path) -> None:
    """SERVICE_NAME, SERVICE_VERSION, SERVICE_PATH_PREFIX, SERVER_VERSION_LOG_RESPONSE_ENABLED have their effect."""
    plain = load(tmp_path)
    named = load(
        tmp_path,
        environ={
            "SERVICE_NAME": "digits",
            "SERVICE_VERSION": "7",
            "SERVICE_PATH_PREFIX": "a/b/",
            "SERVER_VERSION_LOG_RESPONSE_ENABLED": "false",
        },
    )
    assert (plain.service_name, plain.service_version, plain.service_path_prefix) == (None, "1.0", "")
    assert (named.service_name, named.service_version, named.service_path_prefix) == ("digits", "7", "/a/b")
    assert (plain.tells_version, named.tells_version) == (True, False)


def test_options_that_are_not_given_say_nothing(tmp_path: Path) -> None:
    """The defaults of the command line never hide settings of the file."""
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    assert vars(parser.parse_args([])) == {}
    assert load(tmp_path, "auth: false", arguments=vars(parser.parse_args([]))).auth is False
    assert load(tmp_path, "auth: false", arguments=vars(parser.parse_args(["--auth"]))).auth is True


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot: 1", "deployment.yaml: there is no setting 'prot'; did you mean port?"),
        ("max_batch_row: 1", "there is no setting 'max_batch_row'; did you mean max_batch_rows?"),
        ("xyzzy: 1", "there is no setting 'xyzzy'; known are: host, port, frontends, device"),
        ("primary_key: secret", "there is no setting 'primary_key'"),
        ("1: 2", "there is no setting 1;"),
        ("port: 65536", "deployment.yaml: port must be a whole number between 0 and 65535, got 65536"),
        ("port: -1", "port must be a whole number between 0 and 65535, got -1"),
        ("port: 80.5", "port must be a whole number between 0 and 65535, got 80.5"),
        ("port: eighty", "port must be a whole number, got 'eighty'"),
        ("port: true", "port must be a number, got True"),
        ("port:", "port must be a whole number, got None"),
        ("port: [1]", "port must be a whole number, got [1]"),
        ("port: .nan", "port must be a whole number, got nan"),
        ("max_delay_ms: -0.5", "max_delay_ms must be between 0 and 60000, got -0.5"),
        ("max_delay_ms: .nan", "max_delay_ms must be between 0 and 60000, got nan"),
        ("max_delay_ms: .inf", "max_delay_ms must be between 0 and 60000, got inf"),
        ("max_batch_rows: 0", "max_batch_rows must be a whole number between 1 and 65536, got 0"),
        ("max_body_mb: 0", "max_body_mb must be between 0.001 and 1024, got 0"),
        ("frontends: 65", "frontends must be a whole number between 0 and 64, got 65"),
        ("timeout_ms: 0", "timeout_ms must be a whole number between 1 and 3600000, got 0"),
        ("device: []", "device must name at least one device, got []"),
        ("device: 5", "device must name a device, or several with commas between them, got 5"),
        ("device: [cpu, 5]", "device must name a device, or several with commas between them"),
        ("device: 'cpu,'", "device must name a device, or several with commas between them, got 'cpu,'"),
        ("device: gpu", "device must be auto, cpu or cuda:N"),
        ("device: [cpu, 'cuda:x']", "device must be auto, cpu or cuda:N"),
        ("device: [cpu, cpu]", "device names a device twice; use replicas for several device processes"),
        ("device: auto,cpu", "device cannot have auto beside other devices, got 'auto,cpu'"),
        ("replicas: 65", "replicas must be a whole number between 0 and 64, got 65"),
        ("models: [{path: a, replicas: 0}]", "replicas must be a whole number between 1 and 64, got 0"),
        ("models: [{path: a, replicas: x}]", "models[0] (a): replicas must be a whole number, got 'x'"),
        ("auth: maybe", "auth must be true or false, got 'maybe'"),
        ("host: 5", "host must be a text, got 5"),
        ("host: ''", "host must be a text, got ''"),
        ("- port", "must hold settings by name, for instance: port: 8080"),
        ("port", "must hold settings by name"),
        ("port: [", "deployment.yaml, line 1: this is not YAML: expected the node content"),
        ("port: 1\nport: 2", "deployment.yaml, line 2: the key port occurs twice"),
        (
            "models: [{path: a, path: b}]",
            "deployment.yaml, line 1: the key path occurs twice",
        ),
        ("modls: []", "there is no setting 'modls'; did you mean models?"),
        (
            "models:",
            "models must be a list, each item with a path or a registered name, such as {path: model.onnx}",
        ),
        ("models: {path: a}", "models must be a list"),
        (
            "models: [{path: a}, b]",
            "deployment.yaml, models[1] must be settings of a model, such as {path: model.onnx}",
        ),
        ("models: [{}]", "deployment.yaml, models[0] needs either path or registered, and has neither"),
        (
            "models: [{path: a}, {path: a, registered: b}]",
            "models[1] (b) needs either path or registered, and has both",
        ),
        (
            "models: [{path: a}, {path: b, name: digits, replicas: 0}]",
            "deployment.yaml, models[1] (digits): replicas must be a whole number between 1 and 64, got 0",
        ),
        ("models: [{path: a}, {registered: 'b:2', image: {}}]", "models[1] (b:2): image needs a size"),
        (
            "models: [{path: a}, {name: 7, path: ''}]",
            "deployment.yaml, models[1]: name must be a text, got 7",
        ),
        ("models: [{path: a, load_timeout_s: 0}]", "load_timeout_s must be between 1 and 86400, got 0"),
        (
            "models: [{path: a, nam: b}]",
            "deployment.yaml, models[0] (a): there is no setting 'nam'; did you mean name?",
        ),
        (
            "models: [{path: a, max_batch_rows: 0}]",
            "models[0] (a): max_batch_rows must be a whole number between 1",
        ),
        ("models: [{path: 5}]", "models[0]: path must be a text, got 5"),
        (
            "models: [{path: a, uses: []}]",
            "uses must name registered models, as a list of NAME or NAME:VERSION",
        ),
        ("models: [{path: a, uses: ['b:0']}]", "uses must name registered models ('b:0': expected NAME or"),
        ("models: [{path: a, environment_variables: [A]}]", "must be a mapping of names to values"),
        ("models: [{path: a, environment_variables: {1A: b}}]", "must have names of letters, digits and '_'"),
        ("models: [{path: a, environment_variables: {A: [b]}}]", "must have texts as values, not list for A"),
        ("models: [{path: a, max_concurrent_requests: 0}]", "max_concurrent_requests must be a whole number"),
    ],
)
def test_a_bad_deployment_file_is_refused_with_the_reason(tmp_path: Path, text: str, complaint: str) -> None:
    """The message has the file, the setting, the expected and given value, or the nearest known name."""
    with pytest.raises(InvalidSettings) as refused:
        load(tmp_path, text)
    assert complaint in str(refused.value)
    assert str(tmp_path / "deployment.yaml") in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [b"port: .inf", b"max_body_mb: " + b"9" * 400, b"host: \xff", b"models: [{path: ~no.such.user/x}]"],
    ids=["infinite", "enormous", "not UTF-8", "nobody's home"],
)
def test_impossible_setting_is_refused(tmp_path: Path, text: bytes) -> None:
    """Numbers that no machine holds, files that are no text and homes that nobody has are the operator's mistakes."""
    file = tmp_path / "deployment.yaml"
    file.write_bytes(text)
    with pytest.raises(InvalidSettings, match="deployment"):
        load_settings({}, {}, file, ())


@pytest.mark.parametrize(
    ("environ", "arguments", "complaint"),
    [
        ({"STOKER_PORT": "http"}, {}, "STOKER_PORT: port must be a whole number, got 'http'"),
        ({"STOKER_AUTH": "2"}, {}, "STOKER_AUTH: auth must be true or false, got '2'"),
        (
            {"STOKER_ALLOWED_HOSTS": "https://a.example.com"},
            {},
            "STOKER_ALLOWED_HOSTS: allowed_hosts must be names of hosts such as score.example.com, "
            "*.example.com or *, got 'https://a.example.com'",
        ),
        ({}, {"port": "x"}, "command line: port must be a whole number, got 'x'"),
    ],
)
def test_the_message_names_the_source(
    tmp_path: Path, environ: dict[str, str], arguments: dict[str, Any], complaint: str
) -> None:
    """An operator with three sources learns the one to mend."""
    with pytest.raises(InvalidSettings) as refused:
        load(tmp_path, environ=environ, arguments=arguments)
    assert str(refused.value) == complaint


def test_kubernetes_service_links_are_no_settings(tmp_path: Path) -> None:
    """A pod beside a service named stoker has STOKER_PORT=tcp://…, which is not meant for us."""
    assert load(tmp_path, environ={"STOKER_PORT": "tcp://10.0.0.1:8080"}).port == 8080


def test_a_file_that_cannot_be_read_is_the_operators(tmp_path: Path) -> None:
    """A missing file, and a folder in its place, are named."""
    for file in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(InvalidSettings, match=rf"the deployment file {file} cannot be read: "):
            load_settings({}, {}, file, ())


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    """A file with comments alone is fine."""
    assert load(tmp_path, "# nothing yet\n") == ServerSettings()


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment folder can be served from anywhere; absolute paths and home folders stay unchanged."""
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = load(
        tmp_path,
        """
        models:
          - {path: score.py, model_dir: weights, name: one}
          - {path: /opt/model.onnx, max_batch_rows: 8, max_delay_ms: 2}
          - {path: ~/model.onnx}
          - {registered: "digits:3"}
        """,
    )
    assert settings.models == (
        ModelSettings(path=tmp_path / "score.py", model_dir=tmp_path / "weights", name="one"),
        ModelSettings(path=Path("/opt/model.onnx"), max_batch_rows=8, max_delay_ms=2.0),
        ModelSettings(path=Path("/home/somebody/model.onnx")),
        ModelSettings(registered="digits:3"),
    )


def test_models_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    """A named model replaces the file's models; the file's other settings stay."""
    named = (ModelSettings(path=Path("mine.onnx")),)
    settings = load(tmp_path, "port: 1\nmodels: [{path: other.onnx}]", models=named)
    assert (settings.models, settings.port) == (named, 1)


def test_explicit_default_wins_over_imported_settings(tmp_path: Path) -> None:
    """A model with an explicit default keeps it, against settings taken over from another server's files."""
    file = tmp_path / "deployment.yaml"
    file.write_text("models:\n- {path: said.py, environment_managed: user}\n- {path: unsaid.py}\n")
    taken_over = ImportedSettings("Azure", model=ModelSettings(environment_managed="system"))
    settings = load_settings({}, {}, file, (), [taken_over])
    explicit, default = (model.over(settings.model_defaults) for model in settings.models)
    assert (explicit.environment_managed, default.environment_managed) == ("user", "system")
    # Nor does it get lost between several sources.
    assert explicit.over(ModelSettings(environment_managed="system")).environment_managed == "user"
    first = ImportedSettings("first", model=model_settings({"precision": "tf32"}, "first"))
    second = ImportedSettings("second", model=ModelSettings(precision="fp16"))
    assert load_settings({}, {}, None, (), [first, second]).model_defaults.precision == "tf32"


def test_keys_come_from_the_environment_alone(tmp_path: Path) -> None:
    """They are read, said by variable, and never shown."""
    settings = load(tmp_path, environ={"STOKER_PRIMARY_KEY": "very-secret", "STOKER_SECONDARY_KEY": ""})
    assert (settings.primary_key, settings.secondary_key) == ("very-secret", None)
    assert settings.given_keys == ["STOKER_PRIMARY_KEY"]
    assert "very-secret" not in repr(settings)


def test_a_scripts_models_and_variables(tmp_path: Path) -> None:
    """Models are one or a list; numbers and switches are taken as they would be typed in a shell."""
    settings = load(
        tmp_path,
        """
        models:
          - {path: a, uses: digits}
          - {path: b, uses: [digits, "labels:2"], environment_variables: {A: b, N: 2, F: true}}
        """,
    )
    one, several = settings.models
    assert (one.uses, several.uses) == (("digits",), ("digits", "labels:2"))
    assert several.environment_variables == {"A": "b", "N": "2", "F": "true"}


@pytest.mark.parametrize("how", ["auto", "merge", "handle", "rows", "none"])
def test_the_command_line_takes_each_way_of_batching(tmp_path: Path, how: str) -> None:
    """The words that the start prints of a model, `batching: rows`, work without a file too."""
    (model,) = load(tmp_path, f"models: [{{path: m, batching: {how}}}]").models
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    (named,) = serve.serve_settings(parser.parse_args(["m", "--batching", how])).models
    assert named.batching == model.batching == how


@pytest.mark.parametrize(
    ("text", "names"),
    [("embed", ("embed",)), ("'a, b'", ("a", "b")), ("[b, '*']", ("b", "*")), ("'*'", ("*",))],
)
def test_signatures_are_a_list_or_a_text_with_commas(
    tmp_path: Path, text: str, names: tuple[str, ...]
) -> None:
    """In the file and on the command line."""
    (model,) = load(tmp_path, f"models: [{{path: m, signature: {text}}}]").models
    assert model.signature == names
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    (named,) = serve.serve_settings(parser.parse_args(["m", "--signature", ",".join(names)])).models
    assert named.signature == names


@pytest.mark.parametrize("value", [[], "", "a,,b", ["a", "a"], [1], 3, ["", "a"]])
def test_names_that_are_none_are_refused(value: Any) -> None:
    """Each is a text, and stands there once."""
    with pytest.raises(InvalidSettings, match="signature must be"):
        model_settings({"signature": value}, "test")


def test_settings_are_frozen() -> None:
    """Nobody changes a setting after it was validated."""
    with pytest.raises(FrozenInstanceError):
        ServerSettings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("cores", "frontends", "expected"), [(1, 0, 1), (2, 0, 1), (8, 0, 4), (64, 0, 8), (4, 3, 3), (2, 16, 16)]
)
def test_half_of_the_cores_have_frontends(
    monkeypatch: pytest.MonkeyPatch, cores: int, frontends: int, expected: int
) -> None:
    """By default there is at least one frontend, and at most eight."""
    monkeypatch.setattr("stoker.settings.server.usable_cores", lambda: cores)
    assert ServerSettings(frontends=frontends).frontend_count == expected


def test_cluster_part_of_a_file_is_ignored_by_the_server(tmp_path: Path) -> None:
    """A server reads its own part of a file that also describes a cluster."""
    assert load(tmp_path, "port: 9\nkubernetes: {image: stoker, replicas: 3}\n") == ServerSettings(port=9)
