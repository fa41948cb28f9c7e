"""Models: folders, registered versions, labels, and the deployments made of them.

Missing, malformed or changed models, versions and files raise `RepositoryError`; settings that do not fit them raise
`InvalidSettings`. The message says what to do.
"""
