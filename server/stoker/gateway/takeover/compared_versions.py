"""The versions of a frontend's models that are compared: by samples of requests, or as shadows of others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stoker.gateway.takeover.replays import compare_versions, sample_of_file
from stoker.gateway.takeover.samples import Samples
from stoker.gateway.takeover.shadows import Shadow
from stoker.settings.traffic import PARITY_TOLERANCE
from stoker.takeover.comparison import Comparison

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stoker.control.frontend_messages import Compare
    from stoker.deployment import Deployment
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.served_models import ServedModel


class ComparedVersions:
    """Samples the requests of versions, copies requests to shadow versions, and compares the answers."""

    def __init__(self, services: Mapping[int, Service]) -> None:
        """Compare these services; the mapping changes as versions are loaded and unloaded."""
        self._services = services
        self._deployments: dict[int, Deployment] = {}
        self._samples: dict[int, Samples] = {}
        """Sampled requests by the number of their service."""
        self._shadows: dict[str, dict[str, Shadow]] = {}
        """By model and version the shadows, which get copies of the requests to the other versions."""

    def add(self, deployment: Deployment) -> None:
        """Add a version; its requests are sampled if its deployment compares versions."""
        self._deployments[deployment.number] = deployment
        if deployment.parity.mode != "off":
            self._samples[deployment.number] = Samples()

    def remove(self, number: int) -> None:
        """Remove a version, and its samples."""
        self._deployments.pop(number, None)
        self._samples.pop(number, None)

    async def compare(self, question: Compare) -> Comparison:
        """Run the sampled requests of a version, or the one in a file, through it and another version."""
        old, new = self._services.get(question.old), self._services.get(question.new)
        if old is None or new is None:
            return Comparison()
        deployment = self._deployments[question.new]
        samples = self._samples.get(question.old) or Samples(0)
        if question.sample is not None:
            contents = await sample_of_file(old, question.sample, deployment.image)
        else:
            contents = samples.contents
        with samples.pause(time.monotonic_ns):
            return await compare_versions(old, new, contents, deployment.parity.tolerance)

    def route_shadows(self, name: str, percents: Mapping[str, int]) -> None:
        """Replace the shadows of a model, given their percentage by version; unchanged ones go on counting."""
        before = self._shadows.pop(name, {})
        if percents:
            self._shadows[name] = {
                version: before[version]
                if version in before and before[version].percent == percent
                else Shadow(percent)
                for version, percent in percents.items()
            }

    def sweep(
        self, now_ns: int, models: Mapping[str, ServedModel], has_state: Callable[[Service], bool]
    ) -> None:
        """Sample requests and run copies; copies cannot continue the sequence of a model that has state."""
        for number, samples in self._samples.items():
            samples.collect(self._services[number].exchanges, now_ns)
        for name, shadows in self._shadows.items():
            self._copy(models[name], shadows, has_state)

    def _copy(
        self, model: ServedModel, shadows: Mapping[str, Shadow], has_state: Callable[[Service], bool]
    ) -> None:
        mains = [service for service in model.services if service.version not in shadows]
        for version, shadow in shadows.items():
            service = model.versions[version].service
            if service is not None and not has_state(service):
                shadow.copy_requests(mains, service, self._tolerance(service))

    def _tolerance(self, service: Service) -> float:
        for deployment in reversed(self._deployments.values()):
            if (deployment.name, str(deployment.version)) == (service.name, service.version):
                return deployment.parity.tolerance
        return PARITY_TOLERANCE
