"""The native codec (csrc/) as a plain shared library beside sparseloco's modules. Everything else: pyproject.toml.

It needs no Python or torch headers, so that one build serves every version of both. Without a working C++ compiler the
package installs all the same and runs on the reference.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("csrc/kernels")


class BuildLibrary(build_ext):
    """Builds `sparseloco/murmur_codec.so`: not an extension module, so no tag of a Python version in its name."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=[
        Extension(
            "sparseloco.murmur_codec",
            sources=[str(KERNELS / name) for name in ("codec.cpp", "plain.cpp", "avx2.cpp", "avx512.cpp")],
            depends=[str(KERNELS / name) for name in ("murmur_codec.h", "kernels.h", "kernels.inc")],
            # -ffp-contract=off is part of the specification: every operation is rounded by itself.
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-Wall",
                "-Wno-psabi",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ],
)
