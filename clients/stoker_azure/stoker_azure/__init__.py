"""What scripts and deployment code made for Azure Machine Learning import.

Importing this package makes those imports work, and for code of users does what `python -m stoker.azure` does.
"""

from stoker_azure.entrance import enter, is_entered_by_user
from stoker_azure.finder import install

__all__ = ["install"]

install()
if is_entered_by_user():
    enter()
