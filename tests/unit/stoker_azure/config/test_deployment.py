"""Deployment configurations for Azure: every name, every effect, every contradiction."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings
from stoker.settings.server import ImportedSettings, ServerSettings
from stoker_azure.config import DeploymentConfig
from stoker_azure.config.deployment import FIELDS, fields_of
from stoker_azure.config.kept_for_clusters import KEPT_BECAUSE
from stoker_azure.config.server_variables import SERVER_VARIABLES

# As their documentation has them (azureml-core 1.61).
KEYWORDS = {
    "aks": """autoscale_enabled autoscale_min_replicas autoscale_max_replicas autoscale_refresh_seconds
        autoscale_target_utilization collect_model_data auth_enabled cpu_cores memory_gb enable_app_insights
        scoring_timeout_ms replica_max_concurrent_requests max_request_wait_time num_replicas primary_key
        secondary_key tags properties description gpu_cores period_seconds initial_delay_seconds timeout_seconds
        success_threshold failure_threshold namespace token_auth_enabled compute_target_name cpu_cores_limit
        memory_gb_limit blobfuse_enabled""",
    "aci": """cpu_cores memory_gb tags properties description location auth_enabled ssl_enabled enable_app_insights
        ssl_cert_pem_file ssl_key_pem_file ssl_cname dns_name_label primary_key secondary_key collect_model_data
        cmk_vault_base_url cmk_key_name cmk_key_version vnet_name subnet_name""",
    "local": "port",
}
AKS = {
    "computeType": "aks",
    "autoScaler": {
        "autoscaleEnabled": True,
        "minReplicas": 2,
        "maxReplicas": 3,
        "refreshPeriodInSeconds": 1,
        "targetUtilization": 70,
    },
    "dataCollection": {"storageEnabled": True},
    "authEnabled": True,
    "containerResourceRequirements": {"cpu": 2.5, "memoryInGB": 1.0},
    "scoringTimeoutMs": 5000,
    "maxConcurrentRequestsPerContainer": 4,
    "maxQueueWaitMs": 250,
    "keys": {"primaryKey": "primary-of-the-tests", "secondaryKey": "secondary-of-the-tests"},
    "gpuCores": 0,
    "livenessProbeRequirements": {"periodSeconds": 10, "initialDelaySeconds": 310},
    "namespace": "prod-1",
}


def from_file(tmp_path: Path, content: object) -> DeploymentConfig:
    file = tmp_path / "deploymentconfig.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return DeploymentConfig.from_file(file)


def settings_of(imported: ImportedSettings, **arguments: Any) -> ServerSettings:
    """The server's settings with nothing else given than these arguments."""
    return load_settings(arguments, {}, None, (), [imported])


def log_text(config: DeploymentConfig) -> str:
    return "\n".join(config.imported().notes)


@pytest.mark.parametrize("kind", KEYWORDS)
def test_every_keyword_is_known(kind: Any) -> None:
    """Each keyword of the SDK is there once, and no other."""
    assert sorted(field.keyword for field in fields_of(kind)) == sorted(KEYWORDS[kind].split())


def test_json_names_are_unique() -> None:
    """No two settings have a name in common, and each that is kept has a group with a reason."""
    names = [name for field in FIELDS for name in field.json_names]
    assert len(set(names)) == len(names)
    assert {field.group for field in FIELDS} <= {"here", *KEPT_BECAUSE}


def test_a_file_has_its_effects(tmp_path: Path) -> None:
    """The CLI's names become the settings of one machine."""
    imported = from_file(tmp_path, AKS).imported()
    settings = settings_of(imported)
    assert (settings.auth, settings.token_auth, settings.collect) == (True, False, True)
    assert (settings.timeout_ms, settings.replicas, settings.device) == (5000, 2, ("cpu",))
    assert (settings.primary_key, settings.secondary_key) == (
        "primary-of-the-tests",
        "secondary-of-the-tests",
    )
    assert (settings.keys_file, settings.given_keys) == ("deploymentconfig.json", [])
    assert settings.model_defaults == ModelSettings(
        max_concurrent_requests=8, max_queue_wait_ms=250, threads=2
    )


def test_stoker_settings_win_over_azure_s_file(tmp_path: Path) -> None:
    """Options, variables, the deployment file and its models win over a file for Azure."""
    imported = from_file(tmp_path, AKS).imported()
    file = tmp_path / "stoker.yaml"
    file.write_text("replicas: 1\nmodels: [{path: a, max_queue_wait_ms: 9}, {path: b}]\n")
    environ = {"STOKER_TIMEOUT_MS": "7", "STOKER_SECONDARY_KEY": "of-the-environment"}
    settings = load_settings({"collect": False}, environ, file, (), [imported])
    assert (settings.replicas, settings.timeout_ms, settings.collect) == (1, 7, False)
    assert (settings.primary_key, settings.secondary_key) == (None, "of-the-environment")
    assert (settings.keys_file, settings.given_keys) == ("", ["STOKER_SECONDARY_KEY"])
    waits = [model.over(settings.model_defaults).max_queue_wait_ms for model in settings.models]
    assert waits == [9, 250]


def test_log_lines_name_effects_and_kept_groups(tmp_path: Path) -> None:
    """Settings with an effect have one line, and each kept group one; keys are never shown."""
    notes = from_file(tmp_path, AKS).imported().notes
    assert notes == (
        "deploymentconfig.json (aks): keys, autoscale_min_replicas 2, collect_model_data true, "
        "scoring_timeout_ms 5000, replica_max_concurrent_requests 4, max_request_wait_time 250, gpu_cores 0, "
        "cpu_cores 2.5",
        "autoscaling is off on one machine: the fewest replicas that it allows run, 2",
        "at most 8 at once (replica_max_concurrent_requests): a batch cannot have rows of more requests; "
        "without that setting there is no limit",
        "kept for the cluster: autoscaling (autoscale_max_replicas 3, autoscale_refresh_seconds 1, "
        "autoscale_target_utilization 70); the number of replicas is fixed on one machine",
        "kept for the cluster: resources (memory_gb 1); a process is given no share of the machine",
        "kept for the cluster: liveness probe (period_seconds 10, initial_delay_seconds 310); the supervisor sees at "
        "once when a process ends; /v2/health/live is there for probes",
        "kept for the cluster: placement (namespace prod-1); there is no cluster here",
    )
    assert "of-the-tests" not in repr(from_file(tmp_path, AKS)) + repr(from_file(tmp_path, AKS).imported())


def test_keywords_and_a_file_say_the_same(tmp_path: Path) -> None:
    """`from_keywords` takes the keywords of `deploy_configuration`, with None for missing ones."""
    by_file = from_file(tmp_path, AKS)
    given = {keyword: by_file.values.get(keyword) for keyword in KEYWORDS["aks"].split()}
    by_keywords = DeploymentConfig.from_keywords("aks", **given)
    assert by_keywords.values == by_file.values
    assert by_keywords.imported().model == by_file.imported().model


def test_the_how_to(tmp_path: Path) -> None:
    """`AksWebservice.deploy_configuration(autoscale_enabled=False, num_replicas=3, cpu_cores=2, memory_gb=4)`."""
    config = DeploymentConfig.from_keywords(
        "aks", autoscale_enabled=False, num_replicas=3, cpu_cores=2, memory_gb=4
    )
    settings = settings_of(config.imported())
    assert (settings.replicas, settings.model_defaults.threads, settings.auth) == (3, 2, True)
    assert settings.model_defaults.max_concurrent_requests is None
    assert log_text(config).splitlines() == [
        "AksWebservice.deploy_configuration (aks): keys, num_replicas 3, cpu_cores 2",
        "kept for the cluster: resources (memory_gb 4); a process is given no share of the machine",
    ]


@pytest.mark.parametrize("kind", ["aks", "aci", "local"])
def test_nothing_given_changes_little(tmp_path: Path, kind: str) -> None:
    """Azure's defaults for requests at once and for time limits are not taken over, that for keys is."""
    settings = settings_of(from_file(tmp_path, {"computeType": kind.upper()}).imported())
    expected = ServerSettings(auth=kind == "aks", notes=settings.notes)
    assert settings == expected
    assert settings.notes == (f"deploymentconfig.json ({kind}): {'keys' if kind == 'aks' else 'no keys'}",)


@pytest.mark.parametrize(
    ("given", "auth", "token_auth"),
    [
        ({}, True, False),
        ({"auth_enabled": True}, True, False),
        ({"auth_enabled": False}, False, False),
        ({"token_auth_enabled": True}, False, True),
        ({"token_auth_enabled": True, "auth_enabled": False}, False, True),
        ({"token_auth_enabled": False}, True, False),
    ],
)
def test_keys_or_tokens(given: dict[str, Any], auth: bool, token_auth: bool) -> None:
    """Tokens take the place of keys, as on Azure; with neither, callers need nothing."""
    settings = settings_of(DeploymentConfig.from_keywords("aks", **given).imported())
    assert (settings.auth, settings.token_auth) == (auth, token_auth)


@pytest.mark.parametrize(
    ("kind", "given", "note"),
    [
        ("aks", {"max_request_wait_time": 9}, "has no effect without replica_max_concurrent_requests"),
        ("aks", {"cpu_cores": 0.5}, "kept for the cluster: cpu_cores 0.5; a core"),
        ("aks", {"enable_app_insights": True}, "(enable_app_insights true); metrics are at /metrics"),
        ("aks", {"tags": {"team": "a", "n": 1}}, "labels (tags team=a n=1); they are said here"),
        ("aks", {"compute_target_name": "aks-gpu"}, "placement (compute_target_name aks-gpu)"),
        (
            "aci",
            {"dns_name_label": "x"},
            "(dns_name_label x); TLS is a setting of Stoker: --tls-cert and --tls-key",
        ),
        ("aci", {"vnet_name": "v", "subnet_name": "s"}, "(vnet_name v, subnet_name s)"),
    ],
)
def test_setting_without_effect_is_noted(kind: Any, given: dict[str, Any], note: str) -> None:
    """Each such setting is in a line with the reason."""
    assert note in log_text(DeploymentConfig.from_keywords(kind, **given))


def test_a_core_is_not_shared_out() -> None:
    """Azure's default of a tenth of a core limits nothing here; a whole number is a number of threads."""
    assert DeploymentConfig.from_keywords("aks", cpu_cores=0.1).imported().model.threads is None
    assert DeploymentConfig.from_keywords("aci", cpu_cores=1).imported().model.threads == 1


def test_a_description_is_for_callers_too() -> None:
    """It goes into swagger.json."""
    imported = DeploymentConfig.from_keywords("aks", description="Reads digits.").imported()
    assert imported.model.description == "Reads digits."
    assert "description Reads digits." in imported.notes[0]


def test_a_local_deployment_has_a_port(tmp_path: Path) -> None:
    """`LocalWebservice.deploy_configuration(port=6789)`; an option for the port wins."""
    imported = from_file(tmp_path, {"computeType": "local", "port": 6789}).imported()
    assert settings_of(imported).port == 6789
    assert settings_of(imported, port="1234").port == 1234


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"computeType": "aks", "scoringTimeoutMS": 1}, "'scoringTimeoutMS'; did you mean scoringTimeoutMs?"),
        ({"computeType": "aks", "scoring_timeout_ms": 1}, "did you mean scoringTimeoutMs?"),
        ({"computeType": "aks", "minReplicas": 1}, "'minReplicas'; did you mean autoScaler.minReplicas?"),
        ({"computeType": "aks", "autoScaler": {"minReplica": 1}}, "did you mean autoScaler.minReplicas?"),
        ({"computeType": "aks", "keys": {"primary": "x"}}, "did you mean keys.primaryKey?"),
        ({"computeType": "aks", "xyzzy": 1}, "there is no setting 'xyzzy'; known are: aadAuthEnabled,"),
        ({"computeType": "aci", "numReplicas": 1}, "of type aci has no numReplicas, one of type aks has"),
        ({"computeType": "local", "authEnabled": True}, "has no authEnabled, one of type aks or aci has"),
        ({"computeType": "iot"}, "computeType must be aks or aci or local, got 'iot'"),
        ({}, "computeType must be aks or aci or local, got None"),
        ([], "must hold a JSON object, not list"),
        ("{", "deploymentconfig.json is not JSON"),
        ({"computeType": "aks", "authEnabled": "yes"}, "authEnabled must be true or false, got 'yes'"),
        (
            {"computeType": "aks", "numReplicas": 0},
            "numReplicas must be a whole number from 1 to 10000, got 0",
        ),
        ({"computeType": "aks", "numReplicas": True}, "numReplicas must be a whole number from 1 to 10000"),
        ({"computeType": "aks", "numReplicas": 1.5}, "numReplicas must be a whole number from 1 to 10000"),
        (
            {"computeType": "aks", "scoringTimeoutMs": "1"},
            "must be a whole number from 1 to 3600000, got '1'",
        ),
        (
            {"computeType": "aks", "containerResourceRequirements": {"cpu": 0}},
            "must be a number above 0, got 0",
        ),
        (
            {"computeType": "aks", "containerResourceRequirements": 2},
            "no setting 'containerResourceRequirements'",
        ),
        ({"computeType": "aks", "namespace": "Prod"}, "namespace must be 1 to 63 small letters"),
        ({"computeType": "aks", "tags": ["a"]}, "tags must be an object of names and texts, got ['a']"),
        ({"computeType": "aks", "tags": {"a": {}}}, "tags must have texts as values"),
        ({"computeType": "aks", "description": ""}, "description must be a text"),
        ({"computeType": "local", "port": 65536}, "port must be a whole number from 1 to 65535"),
        ({"computeType": "aks", "keys": {"primaryKey": 5}}, "keys.primaryKey must be a text"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: object, complaint: str) -> None:
    """The message names the file, the setting as it was written, and the allowed or meant value."""
    with pytest.raises(InvalidSettings) as refused:
        from_file(tmp_path, content)
    assert complaint in str(refused.value)
    assert "deploymentconfig.json" in str(refused.value)


def test_a_bad_key_is_not_shown(tmp_path: Path) -> None:
    """A secret that is refused stays out of the message."""
    with pytest.raises(InvalidSettings) as refused:
        from_file(tmp_path, {"computeType": "aks", "keys": {"primaryKey": ["secret"]}})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "given", "complaint"),
    [
        ("aks", {"auth_enabled": True, "token_auth_enabled": True}, "cannot both be true"),
        ("aks", {"autoscale_enabled": True, "num_replicas": 2}, "num_replicas cannot be given while"),
        ("aks", {"autoscale_enabled": False}, "num_replicas must be given while autoscale_enabled is false"),
        (
            "aks",
            {"autoscale_enabled": True, "autoscale_min_replicas": 3, "autoscale_max_replicas": 2},
            "autoscale_min_replicas must not be above autoscale_max_replicas",
        ),
        ("aks", {"autoscale_max_replicas": 2}, "autoscale_max_replicas must not be given unless"),
        ("aks", {"cpu_cores": 2, "cpu_cores_limit": 1}, "cpu_cores_limit must be at least cpu_cores"),
        ("aks", {"memory_gb": 2, "memory_gb_limit": 1}, "memory_gb_limit must be at least memory_gb"),
        ("aci", {"vnet_name": "v"}, "vnet_name must have subnet_name beside"),
        (
            "aci",
            {"cmk_key_name": "k"},
            "cmk_key_name must have cmk_vault_base_url and cmk_key_version beside",
        ),
        (
            "aci",
            {"ssl_enabled": True, "ssl_cname": "c"},
            "must have ssl_cert_pem_file and ssl_key_pem_file beside",
        ),
        ("aci", {"num_replicas": 2}, "has no num_replicas, one of type aks has"),
        ("aks", {"cpu_core": 2}, "there is no setting 'cpu_core'; did you mean cpu_cores?"),
    ],
)
def test_contradictions_are_refused(kind: Any, given: dict[str, Any], complaint: str) -> None:
    """Settings that Azure refuses are refused here too, by the names that the caller used."""
    with pytest.raises(InvalidSettings, match=r"Webservice\.deploy_configuration: ") as refused:
        DeploymentConfig.from_keywords(kind, **given)
    assert complaint in str(refused.value)


def test_contradictions_of_a_file_have_its_names(tmp_path: Path) -> None:
    """The names are those that stand in the file, where it has them."""
    with pytest.raises(InvalidSettings, match="authEnabled and aadAuthEnabled cannot both be true"):
        from_file(tmp_path, {"computeType": "aks", "authEnabled": True, "aadAuthEnabled": True})
    with pytest.raises(
        InvalidSettings, match=r"numReplicas must be given while autoScaler\.autoscaleEnabled"
    ):
        from_file(tmp_path, {"computeType": "aks", "autoScaler": {"autoscaleEnabled": False}})


def test_null_is_nothing(tmp_path: Path) -> None:
    """Templates of the CLI have null for unset values; editors on Windows add a byte-order mark."""
    nulls = {
        **AKS,
        "namespace": None,
        "autoScaler": {"autoscaleEnabled": None, "minReplicas": None},
        "keys": None,
    }
    config = from_file(tmp_path, "\ufeff" + json.dumps(nulls))
    assert not {"namespace", "autoscale_enabled", "primary_key"} & set(config.values)


PAGE = (Path(__file__).parents[4] / "server" / "docs" / "azure-deployment.md").read_text(encoding="utf-8")


def test_the_page_lists_every_setting() -> None:
    """Each setting with an effect has its row: keyword, name in the file, deployments, effect."""
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\| ((?:aks|aci|local)[^|]*) \| (.+) \|$", PAGE, re.MULTILINE)
    shown = {keyword: (names, kinds, effect) for keyword, names, kinds, effect in rows}
    assert len(rows) == len(shown)
    without_row = re.findall(r"`(\w+)`", PAGE.partition("Without effect here: ")[2].partition("\n\n")[0])
    by_keyword = {field.keyword: field for field in FIELDS}
    assert sorted([*shown, *without_row]) == sorted(by_keyword)
    assert all(by_keyword[keyword].group != "here" for keyword in without_row)
    for keyword, (names, kinds, effect) in shown.items():
        field = by_keyword[keyword]
        assert tuple(re.findall(r"`([^`]+)`", names)) == field.json_names
        assert set(kinds.split(", ")) == set(field.kinds)
        without = effect.startswith("none") or effect.endswith("else none")
        assert without is (field.group != "here"), keyword


def test_the_page_lists_every_variable() -> None:
    """Each variable of Azure's server has its row."""
    table = PAGE.partition("| variable | effect here |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([A-Z_]{6,})`", re.sub(r"\|[^|]*\|$", "|", table, flags=re.MULTILINE))) == set(
        SERVER_VARIABLES
    )


def test_the_pages_deployment_file_is_read(tmp_path: Path) -> None:
    """The models of a script are written as the page shows it."""
    file = tmp_path / "stoker.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    (model,) = load_settings({}, {}, file, ()).models
    assert (model.uses, model.environment_variables) == (
        ("tf-dnn-mnist", "labels:2"),
        {"TF_CPP_MIN_LOG_LEVEL": "1"},
    )
