"""What scripts and deployment code made for Azure Machine Learning import.

Importing this package makes those imports work where the real packages are not installed.
"""

from stoker.azure.finder import install

__all__ = ["install"]

install()
