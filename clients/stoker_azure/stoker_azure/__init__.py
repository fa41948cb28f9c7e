"""What code, files and command lines made for Azure Machine Learning find in its place.

Programs enter by `stoker.azure`; entry scripts find the modules that they import without it.
"""
