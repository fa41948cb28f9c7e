"""`azureml.core.image`: container images, which Azure made of a script before there was `InferenceConfig`."""

from __future__ import annotations

from typing import Final

from stoker_azure.sdk.unoffered import NotAClass

__all__ = ["ContainerImage", "Image"]

_INSTEAD: Final = (
    "Stoker builds no images; give the script and its environment to InferenceConfig(entry_script='score.py', "
    "environment=Environment.from_conda_specification('myenv', 'myenv.yml')), and deploy with Model.deploy"
)


class Image(metaclass=NotAClass):
    """An image of the workspace."""

    INSTEAD = _INSTEAD


class ContainerImage(Image):
    """An image for Docker."""
