"""The extension, for Python's limited API: one wheel for each Python from 3.11 on.

Without a C++17 compiler the package is installed without it, and the server reads rows as if there were no package.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "stoker_native._rows",
            ["stoker_native/rows.cpp"],
            language="c++",
            py_limited_api=True,
            optional=True,
            extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
