"""Samples: requests that a model is known to answer, from files beside the model or from its own warm-up requests.

Loading warms a model up with its sample, a takeover compares versions by it, an import and a profile measure with it.
Samples that cannot be read or do not fit the model raise `LoadFailed`.
"""
