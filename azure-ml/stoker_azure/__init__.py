"""Stand-ins for the code, files and command lines of Azure Machine Learning.

Programs enter by `stoker.azure`; entry scripts find the modules that they import without it.
"""
