# Everything lives in .venv; nothing is installed outside it. A bare machine needs Python 3.11+, a C++20 compiler, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start hundreds of processes of ours: each would compile all our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test soak upstream lint types format clean

setup: $(VENV)/.done

# timm and torchvision lie beside the others, for our tests alone: registries may hold torchvision for CUDA only, and beside
# the CPU build of torch neither it can be imported nor anything that looks for it, such as transformers' models.
# torch first and alone: the constraints file pins the CPU build before anything else can ask for another. Not compiled:
# that takes longer than the installation, and of most modules for nothing; those in use are compiled on their first import.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c constraints.txt torch hatchling editables
	$(PIP) -c constraints.txt --no-build-isolation -e '.[dev]'
	$(BIN)/python -m pip uninstall --quiet --yes timm torchvision  # where they were until now
	$(PIP) -c constraints.txt --no-deps --upgrade --target $(VENV)/models timm torchvision
	$(BIN)/neff-cache backend build
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

# three at a time on two cores, because tests of servers and leases wait more than they compute; then a share of client
# and server on the other Pythons found here
test: setup
	$(BIN)/neff-cache backend build
	$(BIN)/python -m pytest -m "not soak" -n 3 --dist worksteal
	$(BIN)/python tests/pythons.py

soak: setup
	$(BIN)/neff-cache backend build
	$(BIN)/python -m pytest -m soak --timeout 3600
	$(BIN)/python tests/pythons.py --all

# PyTorch's own test files, in the folder that NEURON_UPSTREAM_TESTS names, are the judges; UPSTREAM says which and how many
UPSTREAM ?= --share 20
upstream: setup
	$(BIN)/neff-cache backend build
	$(BIN)/python -m tests.upstream --record $(UPSTREAM)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist neuron_backend/_lib
