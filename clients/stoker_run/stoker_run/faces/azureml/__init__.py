"""Azure's package as scripts in a run import it: what is installed of it besides stays importable."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
