"""Names of Azure's SDK that Stoker does not offer: each raises an error that says what to do instead.

Methods raise `NotOffered` when they are called, values when they are read, so that code finds every name that it may
have been written for. One table has the names of classes, which take theirs by `with_unoffered_names`; the other has
those of modules: classes that raise when they are used (`NotAClass`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from stoker_azure.exceptions import NotOffered
from stoker_azure.sdk.base import Printable


def _raising(name: str, instead: str) -> Callable[..., NoReturn]:
    def raising(*_arguments: Any, **_keywords: Any) -> NoReturn:
        raise NotOffered(f"{name} is not offered: {instead}")

    return raising


def explain_missing_names(module: ModuleType) -> None:
    """Give a module that is imported under Azure's names the classes of the table, which raise when they are used."""
    table = CLASSES.get(module.__name__.rpartition(".")[2])
    if table is None or hasattr(module, "OFFERS_THE_REST"):
        return
    own: Callable[[str], Any] | None = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        instead = next((why for names, why in table.items() if name in names.split()), None)
        if instead is not None:
            found = NotAClass(name, (), {"INSTEAD": instead, "__module__": module.__name__})
            setattr(module, name, found)
            return found
        if own is not None:
            return own(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    vars(module).update(__getattr__=find, OFFERS_THE_REST=True)


class UnofferedMethod:
    """A method that raises `NotOffered`, of objects or of the class.

    Args:
        instead: Why the method is missing and what to do, the end of a sentence.
    """

    def __init__(self, instead: str, name: str) -> None:
        self._instead = instead
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
_NAME_A_TARGET: Final = (
    "name a compute target, and make it by ComputeTarget.create(workspace, name, configuration)"
)
_ELSEWHERE: Final = (
    "data on Azure is not reached from here: copy it into a folder, and register that with "
    "Datastore.register_folder, or upload it with datastore.upload"
)
_FILES: Final = "files of run configurations are read by 'stoker submit', not by the SDK's objects"
_FILES_ALONE: Final = (
    "data sets are lists of files here: Dataset.File.from_files and register make one, get_by_name finds it, and "
    "scripts read its files, tables with pandas"
)
_IN_SCRIPTS: Final = (
    "a script logs to its own run (Run.get_context()), a notebook to one that it has begun "
    "(experiment.start_logging())"
)
_END: Final = "a run ends with its script; cancel() ends both"
_NO_QUOTA: Final = "this machine's cores and GPUs are the cluster's; 'stoker targets' shows them"
_ATTACH: Final = (
    "ComputeTarget.create and ComputeTarget.attach take what provisioning_configuration() and attach_configuration() "
    "of the target's class return"
)
_STEPS: Final = "it is for steps of pipelines; submit the script to another target with Experiment.submit"
_ELSE_SCRIPTS: Final = (
    "runs are scripts: ScriptRunConfig(source_directory, script, arguments, compute_target)"
)
_ARGUMENTS: Final = (
    "give the data as an argument of the script: dataset.as_mount(), OutputFileDatasetConfig(…)"
)
_BY_CONFIGURATION: Final = "deploy_configuration() of the service's class takes these settings as keywords"
_OUTPUT: Final = "OutputFileDatasetConfig(name, (store, path)) is a folder that the script writes to"
_STORE: Final = "all data stores are of the class Datastore: Datastore.get(workspace, name)"
_SPARK: Final = "scripts on Spark take their settings from run_config.spark"
_PAYLOAD: Final = "nothing is sent to Azure; Model.deploy and Model.profile take the configuration itself"
_RECORDS: Final = "objects are found by their names"
_SCRIPT_WRITES: Final = "pass it to the next script as the path that it is: store.path(PATH).as_mount()"

UNOFFERED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        # By class: the names, those of methods with (), and what to do instead, the end of a sentence.
        "RegisteredModel": {
            "add_tags() remove_tags() add_properties() update() update_tags_properties()": _AGAIN,
            "add_dataset_references()": _DATA,
            "deserialize()": f"{_RECORDS}: Model(workspace, name)",
            "print_configuration()": "Model.deploy prints what is to be known of a configuration",
            "package()": (
                "it builds a container image on Azure, and Stoker builds none; deploy with Model.deploy, or build "
                "one with Stoker in it from Dockerfile.gpu and give it the entry script (stoker serve score.py)"
            ),
            "get_sas_urls()": (
                "the files are on this machine; download() copies them, content is their path"
            ),
        },
        "DeployedService": {
            # Older ways to deploy.
            "deploy() deploy_from_model() deploy_from_image() deploy_local_from_model()": _BY_MODEL,
            "check_for_existing_webservice()": "look into workspace.webservices, or use overwrite=True",
            "deserialize()": f"{_RECORDS}: Webservice(workspace, name)",
            "deploy_to_cloud()": (
                "there is no cloud behind this machine; deploy it once more with Model.deploy and a "
                "deploy_configuration of AksWebservice, or run 'stoker serve --config' on the other machine with the "
                "deployment file of the service"
            ),
            "autoscaler container_resource_requirements encryption_properties vnet_configuration": _PODS,
            "data_collection": "see the attribute collect_model_data, and 'stoker data tail'",
            "deployment_status": "see state and error",
            "environment": "its packages are in the inference_config that it was deployed with",
            "liveness_probe_requirements": "the supervisor sees at once when a process ends",
            "public_fqdn public_ip": "see scoring_uri",
        },
        "InferenceConfig": {
            "build_create_payload() build_profile_payload() validation_script_content()": _PAYLOAD,
        },
        "Run": {
            "log() log_list() log_row() log_table() log_image() log_confusion_matrix()": _IN_SCRIPTS,
            "log_accuracy_table() log_residuals() log_predictions() upload_file() upload_files()": _IN_SCRIPTS,
            "upload_folder() start() child_run() create_children()": _IN_SCRIPTS,
            "complete() fail()": _END,
            "clean()": "'stoker runs delete' removes a run with its files",
            "take_snapshot()": "the files of a script are kept when it is submitted; see get_snapshot_id()",
            "get_secret() get_secrets()": "scripts find secrets in environment variables",
            "get_environment()": "what it asked for and got is in environment/ of run.folder.path",
        },
        "Experiment": {
            "tag() set_tags() remove_tags()": "tag its runs: run.tag",
            "delete()": "delete its runs: 'stoker runs delete'",
            "from_directory()": "name it: Experiment(workspace, name)",
            "archived_time": "Experiment.list(workspace, view_type='ArchivedOnly') has those that are archived",
        },
        "Dataset": {
            "auto_read_files() from_binary_files() from_delimited_files() from_excel_files()": _FILES_ALONE,
            "from_json_files() from_pandas_dataframe() from_parquet_files() from_sql_query()": _FILES_ALONE,
            "head() sample() to_pandas_dataframe() to_spark_dataframe() definition definition_version": _FILES_ALONE,
            "get_definition() get_definitions() update_definition() create_snapshot() get_snapshot()": _FILES_ALONE,
            "delete_snapshot() get_all_snapshots() generate_profile() get_profile()": _FILES_ALONE,
            "compare_profiles() diff() register() Scenario id name description tags state": _FILES_ALONE,
            "is_visible workspace archive() reactivate() deprecate() update()": _FILES_ALONE,
        },
        "FileDataset": {
            "add_tags() remove_tags() update() unregister_all_versions()": (
                "a registered version never changes; register it again with create_new_version=True"
            ),
            "filter() skip() take() take_sample() random_split() file_metadata() partition_keys": (
                "choose files by a pattern: Dataset.File.from_files((store, 'folder/**/*.png')), or in the script"
            ),
            "get_partition_key_values()": "the names of folders are in to_path()",
            "as_cache() hydrate()": "files are fetched once for each machine anyway",
            "data_changed_time": "a run's get_details()['inputDatasets'] has a digest of the files",
        },
        "OutputFileDatasetConfig": {
            "as_input()": _SCRIPT_WRITES,
            "read_delimited_files() read_parquet_files()": _FILES_ALONE,
            "register_on_complete()": (
                "register a data set of the folder when the run has completed: "
                "Dataset.File.from_files((store, path)).register(workspace, name)"
            ),
        },
        "Datastore": {
            "register_azure_file_share() register_azure_sql_database() register_azure_data_lake()": _ELSEWHERE,
            "register_azure_my_sql() register_azure_postgre_sql() register_dbfs() register_hdfs()": _ELSEWHERE,
        },
        "DataPath": {
            "create_data_reference() create_from_data_reference()": "make it by datastore.path(PATH)",
        },
        "DataReference": {"create()": "make it by datastore.path(PATH)"},
        "CondaDependencies": {
            "add_cntk_package()": "name the package: add_pip_package('cntk')",
            "merge_requirements()": "add them one by one: add_conda_package, add_pip_package",
            "sdk_origin_url()": "packages come from the index that pip uses; set_pip_index_url names another",
            "get_default_number_of_packages() DEFAULT_NUMBER_OF_CONDA_PACKAGES DEFAULT_NUMBER_OF_PIP_PACKAGES": (
                "new dependencies have no packages"
            ),
        },
        "RunConfiguration": {
            "load() save() delete()": _FILES,
            "auto_prepare_environment": "environments are always built when they are missing",
        },
        "Workspace": {
            "add_private_endpoint() delete_connection() delete_private_endpoint_connection()": _NO_LINKS,
            "get_connection() get_default_keyvault() list_connections() set_connection()": _NO_LINKS,
            "linked_services private_endpoints": _NO_LINKS,
            "delete()": "delete the services (webservice.delete()), then remove the folder that local.root says",
            "diagnose_workspace()": "'stoker doctor' looks at this machine",
            "discovery_url service_context sku list() setup() update() update_dependencies()": _ONE_WORKSPACE,
            "get_default_compute_target()": "name one: ComputeTarget(workspace, name)",
            "DEFAULT_CPU_CLUSTER_CONFIGURATION DEFAULT_GPU_CLUSTER_CONFIGURATION": _NAME_A_TARGET,
            "get_mlflow_tracking_uri()": _RUNS,
            "images": _IMAGES,
            "list_keys()": "a service has keys: webservice.get_keys(), 'stoker keys show'",
            "sync_keys()": "running services follow their keys by themselves",
        },
        "Environment": {
            "add_private_pip_wheel()": (
                "name the wheel's path in the list of packages: "
                "CondaDependencies.add_pip_package('/path/to/package.whl')"
            ),
            "build() build_local() from_docker_build_context() get_image_details()": _IMAGES,
            "databricks spark": _SPARK,
            "from_existing_conda_environment()": _CONDA,
            "label()": "name the version: Environment.get(workspace, name, version)",
            "load_from_directory()": "Environment.get finds what register has kept in the workspace",
            "r": "services here run Python",
            "save_to_directory()": "register keeps it in the workspace",
        },
        "ComputeTarget": {
            "cluster_fqdn system_services": _THE_CLUSTER,
            "deserialize()": "ComputeTarget(workspace, name) finds it",
            "get_credentials()": f"{_THE_CLUSTER}, which kubectl cannot be given",
            "ssl_configuration": "services of the SDK speak plain HTTP; put a proxy with TLS before them",
            "update()": "it is a record of what was asked for; delete it and create it anew",
        },
        "AmlCompute": {
            "get()": "ComputeTarget(workspace, name) finds it",
            "get_active_runs()": "Run.list_by_compute(target) has the runs of a target",
            "list_quotas() list_usages() update_quotas()": _NO_QUOTA,
            "add_identity() remove_identity()": _NOBODY_SIGNS_IN,
        },
        "AbstractAuthentication": {
            "get_authentication_header() get_token() signed_session()": _NOBODY_SIGNS_IN,
        },
    }
)

CLASSES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        # By module of this package: names of Azure's modules that it stands for, and what to do instead.
        "core": {
            "Keyvault": "scripts find secrets in environment variables",
            "LinkedService LinkedServiceConfiguration SynapseWorkspaceLinkedServiceConfiguration": _NO_LINKS,
            "PrivateEndPoint PrivateEndPointConfig": _NO_LINKS,
            "attach_legacy_compute_target remove_legacy_compute_target": _ATTACH,
            "prepare_compute_target is_compute_target_prepared": (
                "an environment is built when it is missing; 'stoker az ml experiment prepare' builds one before"
            ),
            "diagnostic_log": "STOKER_LOG_LEVEL=debug has the details",
        },
        "authentication": {"AccessToken Audience AzureMLTokenAuthentication": _NOBODY_SIGNS_IN},
        "compute": {
            "ComputeInstance ComputeInstanceProvisioningConfiguration ComputeInstanceStatus": (
                "it is a machine to work on, which this one is; scripts run on the target 'local'"
            ),
            "KubernetesCompute KubernetesComputeAttachConfiguration KubernetesComputeStatus": (
                "'stoker targets attach kubernetes' attaches a cluster, which the SDK then finds by its name"
            ),
            "DataFactoryCompute DataFactoryAttachConfiguration DataFactoryProvisioningConfiguration": _STEPS,
            "KustoCompute KustoAttachConfiguration SynapseCompute SynapseAttachConfiguration": _STEPS,
            "AbstractComputeTarget LocalTarget": "name the target: ScriptRunConfig(…, compute_target='local')",
            "AksAttachConfiguration AksProvisioningConfiguration AksUpdateConfiguration SslConfiguration": _ATTACH,
            "AmlComputeProvisioningConfiguration AmlComputeNodeStateCounts ScaleSettings SystemService": _ATTACH,
            "BatchAttachConfiguration DataLakeAnalyticsAttachConfiguration DatabricksAttachConfiguration": _ATTACH,
            "DsvmProvisioningConfiguration HDInsightAttachConfiguration RemoteComputeAttachConfiguration": _ATTACH,
            "ComputeTargetAttachConfiguration ComputeTargetProvisioningConfiguration": _ATTACH,
            "ComputeTargetUpdateConfiguration": _ATTACH,
        },
        "environment": {
            "DockerBuildContext DockerImageDetails DockerImagePlatform ImageBuildDetails RegistryIdentity": _IMAGES,
            "EnvironmentReference": "find it: Environment.get(workspace, name, version)",
            "RCranPackage RGitHubPackage RSection": "services and runs here run Python",
            "SparkEnvironment SparkPackage SparkSection": _SPARK,
        },
        "run_configuration": {
            "ApplicationEndpointConfiguration KubernetesComputeConfiguration": _ELSE_SCRIPTS,
            "ParallelTaskConfiguration": _ELSE_SCRIPTS,
            "DatabricksCluster DatabricksEnvironment DatabricksSection EggLibrary JarLibrary": _STEPS,
            "MavenLibrary PyPiLibrary RCranLibrary": _STEPS,
            "Data DataLocation DatacacheConfiguration DatasetRegistrationOptions GlobsOptions": _ARGUMENTS,
            "MountOptions OutputData OutputOptions RegistrationOptions UploadOptions Uri": _ARGUMENTS,
            "DataReferenceConfiguration": (
                "run_config.data_references takes the reference itself: {name: datastore.path(PATH).as_download()}"
            ),
            "HistoryConfiguration": "outputs/ and logs/ are always kept",
            "AzureContainerRegistry": "environment.docker.base_image_registry has an address, a user and a password",
            "EnvironmentDefinition ContainerRegistry DataPath Dataset": (
                "azureml.core has Environment, ContainerRegistry and Dataset, azureml.data.datapath has DataPath"
            ),
        },
        "inference_config": {"Asset ContainerImageConfig ImageConfig TargetRuntime UnknownImage": _BY_MODEL},
        "model": {
            "AciServiceDeploymentConfiguration AksEndpointDeploymentConfiguration": _BY_CONFIGURATION,
            "AksServiceDeploymentConfiguration LocalWebserviceDeploymentConfiguration": _BY_CONFIGURATION,
            "AutoScaler ContainerResourceRequirements DataCollection EncryptionProperties": _BY_CONFIGURATION,
            "LivenessProbeRequirements VnetConfiguration AksServiceAccessToken": _BY_CONFIGURATION,
            "ModelPackage": "no images are built; deploy with Model.deploy",
            "UnknownWebservice": "Webservice(workspace, name) finds a service",
        },
        "run": {
            "InputDatasets": "a script finds its inputs in run.input_datasets",
            "LinkOutput OutputDatasets": "a script writes to the path that OutputFileDatasetConfig gives it",
        },
        "dataset": {
            "DataType FileEncoding FileType HistogramCompareMethod PromoteHeadersBehavior": _FILES_ALONE,
            "SkipLinesBehavior TransformationMixin OutputTabularDatasetConfig": _FILES_ALONE,
            "HDFSOutputDatasetConfig LinkFileOutputDatasetConfig LinkTabularOutputDatasetConfig": _OUTPUT,
            "OutputDatasetConfig MountOptions UploadOptions RegistrationConfiguration": _OUTPUT,
            "DatacacheHydrationTracker DatacacheStore": "files are fetched once for each machine anyway",
            "DatasetContextManager DatastoreContextManager": "dataset.mount() is a context with the folder",
        },
        "datastore": {
            "AbstractADLSDatastore AbstractAzureStorageDatastore AbstractDatastore AzureFileDatastore": _STORE,
            "AzureDataLakeDatastore AzureDataLakeGen2Datastore AzureMySqlDatastore DBFSDatastore": _STORE,
            "AzurePostgreSqlDatastore AzureSqlDatabaseDatastore HDFSDatastore": _STORE,
            "SqlDataReference StoredProcedureParameter StoredProcedureParameterType": _ELSEWHERE,
            "DataPathComputeBinding": "datastore.path(PATH).as_mount() and as_download() say how a script gets it",
        },
    }
)

_Class = TypeVar("_Class", bound=type)


def with_unoffered_names(owner: _Class) -> _Class:
    """Give a class the names of the table that Azure's class of this name has and this one does not."""
    for names, instead in UNOFFERED[owner.__name__].items():
        for name in names.split():
            kind = UnofferedMethod if name.endswith("()") else UnofferedValue
            setattr(owner, name.removesuffix("()"), kind(instead, name.removesuffix("()")))
    return owner
