"""The extension, for Python's limited API: one wheel for each Python from 3.11 on."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "stoker_native._rows",
            ["stoker_native/rows.cpp"],
            language="c++",
            py_limited_api=True,
            extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
