"""The decorators that describe the arguments of `run`, under the import paths of the package `inference-schema`."""
