"""Names of Azure's SDK that Stoker does not offer: each raises an error that says what to do instead.

Methods raise `NotOffered` when they are called, values when they are read, so that code finds every name that it may
have been written for. A class takes its names from one of the mixins here, a module's own names are in
`make_getattr`.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, ClassVar, Final, NoReturn

from stoker_azure.exceptions import NotOffered
from stoker_azure.sdk.base import Printable


def _raising(name: str, instead: str) -> Callable[..., NoReturn]:
    def raising(*_arguments: Any, **_keywords: Any) -> NoReturn:
        raise NotOffered(f"{name} is not offered: {instead}")

    return raising


def make_getattr(module: str, of_training: frozenset[str], provided_by: str) -> Callable[[str], NoReturn]:
    """Make the `__getattr__` of a module, which explains names that are missing.

    Args:
        of_training: Names in it that only code for training has.
    """

    def missing(name: str) -> NoReturn:
        if name in of_training:
            raise ImportError(
                f"{module}.{name} is for training on Azure, and Stoker serves models: take it out of the script, or "
                "install azureml-core",
                name=module,
            )
        raise AttributeError(f"module {provided_by!r} has no attribute {name!r}")

    return missing


class UnofferedMethod:
    """A method that raises `NotOffered`, of objects or of the class.

    Args:
        instead: Why the method is missing and what to do, the end of a sentence.
    """

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., NoReturn]:
        return _raising(f"{owner.__name__}.{self._name}", self._instead)


class UnofferedValue(UnofferedMethod):
    """A value that raises `NotOffered` when it is read. It may be set."""

    def __get__(self, instance: object, owner: type) -> Any:
        found = super().__get__(instance, owner)
        return self if instance is None else found()


class NotAClass(type):
    """The type of a class without objects: making one and calling its methods raise `NotOffered`.

    The class says in `INSTEAD` what to do.
    """

    INSTEAD: str

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Raise `NotOffered`."""
        return _raising(cls.__name__, cls.INSTEAD)(*arguments, **keywords)

    def __getattr__(cls, name: str) -> Any:
        """Return a method that raises `NotOffered`."""
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return _raising(f"{cls.__name__}.{name}", cls.INSTEAD)


class KnownAttributes(Printable):
    """Refuses to set attributes that Azure's class does not have, as Azure does: they are misspelt.

    A class has in `WITHOUT_EFFECT` the attributes of Azure's that may be set and change nothing here. Its constructor
    ends with `self._is_complete = True`.
    """

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()
    _is_complete = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            AttributeError: There is none of this name; the message has the nearest one.
        """
        if self._is_complete and not name.startswith("_"):
            known = {one for one in dir(self) if not one.startswith("_")} | self.WITHOUT_EFFECT
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")
        super().__setattr__(name, value)


_AGAIN: Final = (
    "a registered version never changes; register the files again with Model.register, which makes the next version "
    "with the tags, properties and description that you give"
)
_BY_MODEL: Final = (
    "describe the script by an InferenceConfig, and deploy with Model.deploy(workspace, name, models, "
    "inference_config, deployment_config)"
)
_PODS: Final = (
    "there are no containers here; the settings of the service are its attributes, such as num_replicas"
)
_DATA: Final = "data stores and data sets are on Azure; read the files from where they are"
_RUNS: Final = "scripts in a run find theirs in MLFLOW_TRACKING_URI, and outside of one there is none"
_ONE_WORKSPACE: Final = "the workspace is a folder on this machine; Workspace.from_config() finds it"
_NO_LINKS: Final = "this machine has no connections of Azure's; scripts find secrets in environment variables"
_IMAGES: Final = (
    "no images are built; set environment.python.user_managed_dependencies = False to have the packages installed "
    "when the service starts, or build an image from Dockerfile.gpu"
)
_CONDA: Final = (
    "write the packages into a file (conda env export) and use Environment.from_conda_specification"
)
_THE_CLUSTER: Final = "this machine stands for the cluster"
_NOBODY_SIGNS_IN: Final = "nobody signs in here; services have get_keys() and get_token()"
_TRAINING_ONLY: Final = "it is for training on Azure; take it out, the service does not need it"


class UnofferedByModel:
    """Of `azureml.core.model.Model`."""

    add_tags = UnofferedMethod(_AGAIN)
    remove_tags = UnofferedMethod(_AGAIN)
    add_properties = UnofferedMethod(_AGAIN)
    update = UnofferedMethod(_AGAIN)
    update_tags_properties = UnofferedMethod(_AGAIN)
    add_dataset_references = UnofferedMethod(_DATA)
    print_configuration = UnofferedMethod("Model.deploy prints what is to be known of a configuration")
    package = UnofferedMethod(
        "it builds a container image on Azure, and Stoker builds none; deploy with Model.deploy, or build one with "
        "Stoker in it from Dockerfile.gpu and give it the entry script (stoker serve score.py)"
    )
    get_sas_urls = UnofferedMethod(
        "the files are on this machine; download() copies them, content is their path"
    )


class UnofferedByWebservice:
    """Of the classes of `azureml.core.webservice`."""

    # Older ways to deploy.
    deploy = UnofferedMethod(_BY_MODEL)
    deploy_from_model = UnofferedMethod(_BY_MODEL)
    deploy_from_image = UnofferedMethod(_BY_MODEL)
    deploy_local_from_model = UnofferedMethod(_BY_MODEL)
    check_for_existing_webservice = UnofferedMethod("look into workspace.webservices, or use overwrite=True")
    deploy_to_cloud = UnofferedMethod(
        "there is no cloud behind this machine; deploy it once more with Model.deploy and a deploy_configuration of "
        "AksWebservice, or run 'stoker serve --config' on the other machine with the deployment file of the service"
    )
    autoscaler = UnofferedValue(_PODS)
    container_resource_requirements = UnofferedValue(_PODS)
    data_collection = UnofferedValue("see the attribute collect_model_data, and 'stoker data tail'")
    deployment_status = UnofferedValue("see state and error")
    encryption_properties = UnofferedValue(_PODS)
    environment = UnofferedValue("its packages are in the inference_config that it was deployed with")
    liveness_probe_requirements = UnofferedValue("the supervisor sees at once when a process ends")
    public_fqdn = UnofferedValue("see scoring_uri")
    public_ip = UnofferedValue("see scoring_uri")
    vnet_configuration = UnofferedValue(_PODS)


class UnofferedByWorkspace:
    """Of `azureml.core.workspace.Workspace`."""

    add_private_endpoint = UnofferedMethod(_NO_LINKS)
    delete = UnofferedMethod(
        "delete the services (webservice.delete()), then remove the folder that local.root says"
    )
    delete_connection = UnofferedMethod(_NO_LINKS)
    delete_private_endpoint_connection = UnofferedMethod(_NO_LINKS)
    diagnose_workspace = UnofferedMethod("'stoker doctor' looks at this machine")
    discovery_url = UnofferedValue(_ONE_WORKSPACE)
    get_connection = UnofferedMethod(_NO_LINKS)
    get_default_compute_target = UnofferedMethod("name one: ComputeTarget(workspace, name)")
    get_default_keyvault = UnofferedMethod(_NO_LINKS)
    get_mlflow_tracking_uri = UnofferedMethod(_RUNS)
    images = UnofferedValue(_IMAGES)
    linked_services = UnofferedValue(_NO_LINKS)
    list = UnofferedMethod(_ONE_WORKSPACE)
    list_connections = UnofferedMethod(_NO_LINKS)
    list_keys = UnofferedMethod("a service has keys: webservice.get_keys(), 'stoker keys show'")
    private_endpoints = UnofferedValue(_NO_LINKS)
    service_context = UnofferedValue(_ONE_WORKSPACE)
    set_connection = UnofferedMethod(_NO_LINKS)
    setup = UnofferedMethod(_ONE_WORKSPACE)
    sku = UnofferedValue(_ONE_WORKSPACE)
    sync_keys = UnofferedMethod("running services follow their keys by themselves")
    update = UnofferedMethod(_ONE_WORKSPACE)
    update_dependencies = UnofferedMethod(_ONE_WORKSPACE)


class UnofferedByEnvironment:
    """Of `azureml.core.environment.Environment`."""

    add_private_pip_wheel = UnofferedMethod(
        "name the wheel's path in the list of packages: CondaDependencies.add_pip_package('/path/to/package.whl')"
    )
    build = UnofferedMethod(_IMAGES)
    build_local = UnofferedMethod(_IMAGES)
    databricks = UnofferedValue(_TRAINING_ONLY)
    from_docker_build_context = UnofferedMethod(_IMAGES)
    from_existing_conda_environment = UnofferedMethod(_CONDA)
    get_image_details = UnofferedMethod(_IMAGES)
    label = UnofferedMethod("name the version: Environment.get(workspace, name, version)")
    load_from_directory = UnofferedMethod("Environment.get finds what register has kept in the workspace")
    r = UnofferedValue("services here run Python")
    save_to_directory = UnofferedMethod("register keeps it in the workspace")
    spark = UnofferedValue(_TRAINING_ONLY)


class UnofferedByComputeTarget:
    """Of `azureml.core.compute.ComputeTarget` and `AksCompute`."""

    cluster_fqdn = UnofferedValue(_THE_CLUSTER)
    deserialize = UnofferedMethod("ComputeTarget(workspace, name) finds it")
    get_credentials = UnofferedMethod(f"{_THE_CLUSTER}, which kubectl cannot be given")
    ssl_configuration = UnofferedValue(
        "services of the SDK speak plain HTTP; put a proxy with TLS before them"
    )
    system_services = UnofferedValue(_THE_CLUSTER)
    update = UnofferedMethod("it is a record of what was asked for; delete it and create it anew")


class UnofferedByAuthentication:
    """Of the classes of `azureml.core.authentication`."""

    get_authentication_header = UnofferedMethod(_NOBODY_SIGNS_IN)
    get_token = UnofferedMethod(_NOBODY_SIGNS_IN)
    signed_session = UnofferedMethod(_NOBODY_SIGNS_IN)
