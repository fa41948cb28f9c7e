"""Keys of services, and the tokens that are signed for them.

A key that is no key, and a file that cannot be read, raise `InvalidSettings`; a credential that is refused raises
`Unauthorized` or `OutOfScope`.
"""
