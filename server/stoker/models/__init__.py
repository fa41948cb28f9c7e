"""Models: folders, registered versions, labels, and the deployments made of them.

Models, versions and files that are missing, malformed or changed raise `RepositoryError`, settings that they cannot
have `InvalidSettings`; the message says what to do.
"""
