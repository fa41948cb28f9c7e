"""Bytes to tensors and back: pure functions, one module a protocol.

Decoders raise `MalformedBody` for bytes that cannot be read, `InvalidInput` for what does not fit the model, and
`BodyTooLarge` for more than is read at once. Encoders raise `NonFiniteOutput` for NaN and infinities where
`non_finite` is `error`, and `InvalidInput` for outputs that the requested form cannot hold.
"""
