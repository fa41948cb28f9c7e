"""The classes of `azureml.core` for deployment code, with this machine in the place of Azure.

`stoker_azure.finder` says under which names the modules are provided. What a workspace has (models, runs, data) knows
`base.BaseWorkspace`; `workspace.Workspace`, which lists it all, stands above. Classes that know each other on Azure
are in one module: `model` has models and services, `run` has experiments and runs. Entry scripts import many of these
modules, so imports that only deploying, registering and scoring need are where they are used.

A service is a `stoker serve` process of its own, which goes on when the code that has deployed it ends; see
`services.records` and `services.process`.
"""
