"""`ts`: what TorchServe's handlers import, with the inputs, outputs and order of calls that its documentation says.

`stoker_torchserve.ts_imports` provides these modules under that name, in the processes of handlers alone.
"""

__version__ = "0.12.0"
"""The TorchServe whose documentation these modules follow, as handlers are told."""
