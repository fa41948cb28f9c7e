"""What deployment code imports from `azureml.core`: the same classes, with this machine in the place of Azure.

`stoker.azure.finder` says under which names the modules are provided. A service is a `stoker serve` process of its
own, which goes on when the code that has deployed it ends; see `services.records` and `services.process`.
"""
