#!/usr/bin/env bash
# The first day on a GPU (gpu_day.py), from nothing but a Python whose torch has CUDA. Options are passed on.
# PYTHON names that Python. What else is needed is installed into .venv-gpu, which uses that torch; pip's own variables
# (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX) say from where.
set -euo pipefail
cd "$(dirname "$0")/.."

sees_gpu='import sys, torch; sys.exit(not torch.cuda.is_available())'
has_rest='import bittensor, botocore, cryptography, datasets, msgspec, pydantic, torch'

choose() { # the first Python that succeeds with this program
    for python in ${PYTHON:-} .venv-gpu/bin/python .venv/bin/python python3 python; do
        if "$python" -c "$1" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    return 1
}

python=$(choose "$sees_gpu" || choose 'import torch' || true)
if [ -z "$python" ]; then
    echo "no Python here has torch: install it with CUDA, or name such a Python: PYTHON=/path/to/python $0" >&2
    exit 1
fi
if ! "$python" -c "$has_rest" 2>/dev/null; then
    "$python" -m venv --system-site-packages .venv-gpu
    python=.venv-gpu/bin/python
    grep -v '^torch==' constraints.txt > .venv-gpu/constraints.txt # the torch that is here stays
    "$python" -m pip install -q -c .venv-gpu/constraints.txt pip setuptools &&
        "$python" -m pip install -q -c .venv-gpu/constraints.txt --no-build-isolation -e '.[localnet]' &&
        "$python" -m murmur.lab.devnet.metadata ||
        echo "not everything could be installed: parts that need what is missing will fail" >&2
fi
for toolkit in "${CUDA_HOME:-}" /usr/local/cuda; do
    command -v nvcc > /dev/null || [ ! -x "$toolkit/bin/nvcc" ] || export PATH="$toolkit/bin:$PATH"
done
test -f sparseloco/murmur_codec.so || "$python" setup.py -q build_ext --inplace ||
    echo "the native codec could not be built" >&2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" benchmarks/gpu_day.py "$@"
