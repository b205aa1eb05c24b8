"""The one part that pyproject.toml cannot say for every setuptools: the recorder's library, which is built
where there is a C compiler (without one everything else is installed)."""

import sys

from setuptools import Extension, setup

LIBRARY = Extension(
    "nsysalign.recorder._library",
    sources=["nsysalign/recorder/library.c"],
    libraries=["dl", "pthread"],
    extra_compile_args=["-fvisibility=hidden"],
    optional=True,
)

setup(ext_modules=[LIBRARY] if sys.platform == "linux" else [])
