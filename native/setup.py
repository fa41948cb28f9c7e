"""The extensions, for Python's limited API: one wheel for each Python from 3.11 on.

Without a C++17 compiler the package is installed without them, and the server works as if there were no package.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"stoker_native.{module}",
            [f"stoker_native/{source}"],
            language="c++",
            py_limited_api=True,
            optional=True,
            extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden"],
        )
        for module, source in [("_rows", "rows.cpp"), ("resizing", "resizing.cpp")]
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
