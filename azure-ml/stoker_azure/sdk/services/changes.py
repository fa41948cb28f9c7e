"""Changes of a deployed service: updates, tags, and its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker_azure.exceptions import NotOffered, WebserviceException
from stoker_azure.sdk.base import raised_as, text_labels
from stoker_azure.sdk.inference_config import InferenceConfig
from stoker_azure.sdk.registered_model import RegisteredModel, model_ids
from stoker_azure.sdk.services.recorded import RecordedService
from stoker_azure.sdk.services.records import Plan, now

_LABELS: Final = {"tags", "properties"}


class ServiceChanges(RecordedService):
    """Changes of a deployed service."""

    def update(
        self,
        image: Any = None,
        *,
        models: Sequence[RegisteredModel] | None = None,
        inference_config: InferenceConfig | None = None,
        **keywords: Any,
    ) -> None:
        """Redeploy the service with changed settings; arguments that are None change nothing.

        Tags and properties change while the service runs. All other changes restart the process, which
        answers no requests until it is ready.

        Raises:
            WebserviceException: A setting, file or model cannot be used; the service goes on as it was.
        """
        if image is not None:
            raise NotOffered("services are not made of images here; give models and inference_config")
        changed = {name: value for name, value in keywords.items() if value is not None}
        plan = Plan.of(self._record).updated(
            changed,
            None if models is None else model_ids(models),
            None if inference_config is None else inference_config.to_json(),
        )
        if models is None and inference_config is None and changed.keys() <= _LABELS:
            self._relabel(**{name: plan.keywords[name] for name in changed})
        else:
            self._deploy(plan)

    def add_tags(self, tags: Mapping[str, Any]) -> None:
        """Add tags, or change them."""
        self._relabel(tags={**self.tags, **tags})

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags by their names."""
        self._relabel(tags={name: value for name, value in self.tags.items() if name not in tags})

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties."""
        self._relabel(properties={**self.properties, **properties})

    def delete(self) -> None:
        """Delete the service, with its keys.

        Raises:
            WebserviceException: The record cannot be read.
        """
        from stoker_azure.sdk.services.deploying import delete

        with raised_as(WebserviceException):
            delete(self.workspace.local, self.name)

    def _deploy(self, plan: Plan) -> None:
        from stoker_azure.sdk.services.deploying import deploy

        with raised_as(WebserviceException):
            deploy(self.workspace.local, plan, overwrite=True)

    def _relabel(self, **changed: Mapping[str, Any]) -> None:
        given: dict[str, Any] = {name: text_labels(value) for name, value in changed.items()}
        if self._record.cluster is not None:
            plan = Plan.of(self._record)
            self._deploy(dataclasses.replace(plan, keywords={**plan.keywords, **given}))
            return
        with raised_as(WebserviceException), self._services.changing():
            self._services.write(dataclasses.replace(self._record, **given, updated_at=now()))
