"""The directory of a frontend: services by names of models, versions, labels and deployments."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.puppets import metric_memory, puppet_service

from stoker.errors import NotReady, UnknownService
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.traffic import DEPLOYMENT_HEADER, Traffic
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier
from stoker.metrics.memory import MetricMemory
from stoker.settings.traffic import Endpoint
from stoker.settings.versions import VersionStatus


@pytest.fixture
def memory() -> MetricMemory:
    """Counters that nobody has counted yet."""
    return metric_memory()


def service(memory: MetricMemory, version: str, name: str = "digits", slot: int = 0) -> Service:
    """A service that takes everybody's requests, and is joined to nothing."""
    return puppet_service(name, memory, slot=slot, version=version)


def test_find_with_a_number_or_label_returns_that_version(memory: MetricMemory) -> None:
    """A name alone means the default; an error tells versions that are loading from those that are not there."""
    third, seventh = service(memory, "3"), service(memory, "7")
    directory = ModelDirectory({"digits": third})
    versions = {
        "3": ServedVersion(VersionStatus(0, "AVAILABLE"), third),
        "7": ServedVersion(VersionStatus(1, "AVAILABLE"), seventh),
        "8": ServedVersion(VersionStatus(2, "LOADING")),
        "9": ServedVersion(VersionStatus(3, "END", "unloaded")),
    }
    assert directory.route("digits", ServedModel(versions, "3", {"canary": "7"}))
    assert directory.find("digits") is directory.service("digits") is directory.service(None) is third
    assert directory.find("digits", "7") is directory.find("digits", label="canary") is seventh
    # MLServer's versions are texts.
    assert directory.find("digits", "canary") is seventh
    states = {"3": "AVAILABLE", "7": "AVAILABLE", "8": "LOADING", "9": "END"}
    assert directory.model_versions("digits") == states
    with pytest.raises(NotReady, match="'digits' version 8 is not ready"):
        directory.find("digits", "8")
    for name, version, label in (
        ("digits", "9", None),
        ("digits", "03", None),
        ("digits", None, "stable"),
        ("letters", None, None),
        ("letters", "3", None),
    ):
        with pytest.raises(UnknownService, match="Request for unknown model"):
            directory.find(name, version, label)
    assert directory.model_versions("letters") == {}


def test_find_of_a_model_that_could_not_be_loaded_raises_the_reason(memory: MetricMemory) -> None:
    """Each way to ask for the model gets it; the server is ready without the model."""
    directory = ModelDirectory({"letters": service(memory, "1", "letters")})
    broken = ServedVersion(VersionStatus(1, "END", "digits is no model", "load_failed"))
    directory.route("digits", ServedModel({"1": broken}, "1"))
    for find in (directory.service, directory.find, lambda name: directory.find(name, "1")):
        with pytest.raises(NotReady, match=r"'digits'.* could not be loaded: digits is no model"):
            find("digits")
    directory.only = "digits"
    with pytest.raises(NotReady, match="could not be loaded"):
        directory.service(None)
    del directory.services["letters"]
    directory.check_ready()


def test_check_ready_names_the_models_that_cannot_score(memory: MetricMemory) -> None:
    """A service without a device cannot score."""
    with pytest.raises(NotReady, match="Not ready yet: digits"):
        ModelDirectory({"digits": service(memory, "1")}).check_ready()


def test_route_with_another_state_alone_changes_no_name(memory: MetricMemory) -> None:
    """The state is shown from then on, and a model without versions is gone."""
    digits = service(memory, "1")
    directory = ModelDirectory({"digits": digits})
    ended = ServedModel({"1": ServedVersion(VersionStatus(0, "UNLOADING"), digits)}, "1")
    assert not directory.route("digits", ended)
    assert directory.model_versions("digits") == {"1": "UNLOADING"}
    assert directory.route("digits", ServedModel({}, None))
    assert (directory.models, directory.services) == ({}, {})
    with pytest.raises(UnknownService, match="none is loaded"):
        directory.service(None)


def test_only_stays_the_model_that_the_server_was_started_with(memory: MetricMemory) -> None:
    """Of several models at the start none is meant where a path names none."""
    digits, letters = service(memory, "1"), service(memory, "1", "letters")
    directory = ModelDirectory({"digits": digits})
    directory.route("letters", ServedModel.of(letters, 1))
    assert directory.service(None) is digits
    assert directory.service("letters") is letters
    several = ModelDirectory({"digits": digits, "letters": letters})
    with pytest.raises(UnknownService, match="Several services"):
        several.service(None)
    with pytest.raises(UnknownService, match="use /api/v1/service/<name>/v1/embeddings"):
        several.deployment({}, "/v1/embeddings")


@pytest.mark.parametrize("hides_names", [False, True])
def test_errors_list_models_unless_names_are_hidden(memory: MetricMemory, hides_names: bool) -> None:
    """Only callers with a key may know the names then."""
    directory = ModelDirectory({"digits": service(memory, "1")}, hides_names=hides_names)
    with pytest.raises(UnknownService) as refused:
        directory.service("letters")
    assert ("served here: digits" in str(refused.value)) == (not hides_names)


def test_deployment_divides_the_requests_of_an_endpoint_by_shares(memory: MetricMemory) -> None:
    """A header names one; a caller whose key is refused takes no turn."""
    blue, green = service(memory, "1", "blue"), service(memory, "1", "green")
    traffic = Traffic(Endpoint("shop", {"blue": 75, "green": 25}))
    directory = ModelDirectory({"blue": blue, "green": green}, traffic)
    chosen = [directory.deployment({}).name for _ in range(4)]
    assert sorted(chosen) == ["blue", "blue", "blue", "green"]
    assert directory.deployment({DEPLOYMENT_HEADER: b"green"}) is green
    with pytest.raises(UnknownService, match="There is no deployment"):
        directory.deployment({DEPLOYMENT_HEADER: b"red"})
    blue.access = Access(KeyVerifier(Path("no-keys"), "blue", Keys("k" * 32, "k" * 32)))
    assert [directory.deployment({}) for _ in range(3)] == [blue] * 3
    del directory.services["blue"]
    traffic = Traffic(Endpoint("shop", {"blue": 100, "green": 0}))
    with pytest.raises(NotReady, match="blue is not served now"):
        ModelDirectory({"green": green}, traffic).deployment({})
