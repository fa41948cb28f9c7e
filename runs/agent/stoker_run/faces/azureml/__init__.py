"""Azure's package as scripts in a run import it: what is installed of it besides stays importable."""

from functools import partial
from pkgutil import extend_path

from stoker_run.azureml_modules import explain_missing_modules, find_in_package

__path__ = extend_path(__path__, __name__)
explain_missing_modules()
__getattr__ = partial(find_in_package, __name__)
