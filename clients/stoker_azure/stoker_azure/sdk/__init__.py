"""What deployment code imports from `azureml.core`: the same classes, with this machine in the place of Azure.

`stoker_azure.finder` says under which names the modules are provided. There is a room for each kind of thing that a
workspace has: models, environments, services. Rooms know those below them; the other way leads through `deferred`.

A service is a `stoker serve` process of its own, which goes on when the code that has deployed it ends; see
`services.records` and `services.process`.
"""
