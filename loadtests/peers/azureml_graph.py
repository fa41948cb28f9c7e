"""A TensorFlow 1 entry script under azureml-inference-server-http, which itself gives scripts today's TensorFlow.

ENTRY_SCRIPT names the script. Where azureml-core is not installed, what the how-to's script imports of it is empty.
"""

import importlib.util
import os
import sys
import types

import tensorflow.compat.v1 as tensorflow

tensorflow.disable_v2_behavior()
sys.modules["tensorflow"] = tensorflow
try:
    import azureml.core.model  # noqa: F401 - installed or not is the question
except ImportError:
    for name in ("azureml", "azureml.core", "azureml.core.model"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["azureml.core.model"].Model = object

spec = importlib.util.spec_from_file_location("entry_script", os.environ["ENTRY_SCRIPT"])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
init, run = script.init, script.run
