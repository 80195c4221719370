"""The native codec (csrc/) as plain shared libraries beside sparseloco's modules. Everything else: pyproject.toml.

They need no Python or torch headers, so that one build serves every version of both. Without a working C++ compiler the
package installs all the same and runs on the reference; the library for GPUs is built where nvcc is.
"""

import atexit
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = Path("csrc/kernels")
CUDA = Path("csrc/cuda/codec.cu")
ARCHITECTURES = ("80", "90", "100")
# --fmad=false is part of the specification: every operation is rounded by itself.
NVCC = ["nvcc", "-std=c++17", "-O3", "--fmad=false", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"]


class BuildLibrary(build_ext):
    """Builds `sparseloco/murmur_codec.so` and `murmur_cuda.so`: not extension modules, so no tag of a Python version in
    their names."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        if ext.sources != [str(CUDA)]:
            return super().build_extension(ext)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES]
        codes.append(f"-gencode=arch=compute_{ARCHITECTURES[-1]},code=compute_{ARCHITECTURES[-1]}")  # newer ones
        try:
            subprocess.run([*NVCC, *codes, str(CUDA), "-o", str(target)], check=True)
        except subprocess.CalledProcessError as fault:
            raise CompileError(f"{CUDA}: {fault}") from None


class Wheel(bdist_wheel):
    """One for all versions of Python: the libraries in it know none."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


scratch = mkdtemp(prefix="murmuration-build-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)

setup(
    # What a build makes on its way stays out of the tree.
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
    ext_modules=[
        Extension(
            "sparseloco.murmur_codec",
            sources=[str(KERNELS / name) for name in ("codec.cpp", "plain.cpp", "avx2.cpp", "avx512.cpp")],
            depends=[str(KERNELS / name) for name in ("murmur_codec.h", "kernels.h", "kernels.inc", "dense.inc")],
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
        ),
        *(
            [Extension("sparseloco.murmur_cuda", [str(CUDA)], depends=[str(KERNELS / "murmur_codec.h")], optional=True)]
            if shutil.which("nvcc")
            else []
        ),
    ],
)
