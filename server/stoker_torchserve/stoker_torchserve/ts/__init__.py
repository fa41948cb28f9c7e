"""`ts`: what TorchServe's handlers import, with the inputs, outputs and order of calls that its documentation says.

`stoker_torchserve.ts_imports` provides these modules under that name, in the processes of handlers alone.
"""
