"""The API of TensorFlow 1 for scripts of its age: `import tensorflow` gives `tensorflow.compat.v1`."""

import logging
import sys
from types import ModuleType
from typing import Any, List

_TENSORFLOW = "tensorflow"


def install_v1_api(tensorflow: Any) -> None:
    """Let `import tensorflow` give the API of version 1, with its behaviour, in this process from now on.

    Args:
        tensorflow: The module of TensorFlow 2.
    """
    v1 = tensorflow.compat.v1
    logger = logging.getLogger(_TENSORFLOW)
    level = logger.level
    # Each of its switches logs that it is deprecated.
    logger.setLevel(logging.ERROR)
    v1.disable_v2_behavior()
    logger.setLevel(level)
    sys.modules[_TENSORFLOW] = _V1Api(tensorflow, v1)
    # For `from tensorflow.train import Saver`; `tensorflow.compat.v1` stays what it is.
    for name in [name for name in sys.modules if name.startswith(v1.__name__ + ".")]:
        below = name[len(v1.__name__) + 1 :]
        if below.partition(".")[0] != "compat":
            sys.modules.setdefault(_TENSORFLOW + "." + below, sys.modules[name])


class _V1Api(ModuleType):
    """The module `tensorflow` with the names of version 1 first; its submodules are found where they are."""

    def __init__(self, tensorflow: Any, v1: Any) -> None:
        super().__init__(_TENSORFLOW, tensorflow.__doc__)
        for name in ("__path__", "__file__", "__spec__", "__loader__", "__package__", "__version__"):
            setattr(self, name, getattr(tensorflow, name, None))
        self._stoker_apis = (v1, tensorflow)

    def __getattr__(self, name: str) -> Any:
        for api in self._stoker_apis:
            try:
                return getattr(api, name)
            except AttributeError:
                continue
        raise AttributeError(
            f"module 'tensorflow' has no attribute {name!r}, not even in version 1 of its API"
        )

    def __dir__(self) -> List[str]:
        return dir(self._stoker_apis[0])
