# Two commands for a fresh clone: `make demo` and `make test`. They need Python 3.11+ with venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=

.PHONY: help demo test coverage lint types bench vulkan clean

help:
	@echo "make demo      set up, and train the digits classifier"
	@echo "make test      set up, and run the tests (ARGS='-k name' is passed to pytest)"
	@echo "make coverage  the tests with branch coverage"
	@echo "make lint      ruff and the import contracts"
	@echo "make types     mypy and pyright"
	@echo "make bench     the benchmarks, into benchmarks/RESULTS.md (PyTorch, if it is installed, stands beside)"

demo: $(VENV)/.demo
	$(BIN)/python examples/digits.py $(ARGS)

test: $(VENV)/.dev vulkan
	$(BIN)/python -m pytest -n 2 $(ARGS)

coverage: $(VENV)/.dev vulkan
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term-missing:skip-covered $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks --write benchmarks/RESULTS.md $(ARGS)

# The stamps are older than pyproject.toml when its dependencies may have changed.

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[examples]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.demo

# The WGSL tests want a Vulkan driver; Mesa's software one will do. macOS and Windows bring their own API.
vulkan:
	@if test "$$(uname -s)" != Linux || test -n "$$VK_DRIVER_FILES$$VK_ICD_FILENAMES" \
	    || ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json 2>/dev/null | grep -q .; then exit 0; fi; \
	packages="mesa-vulkan-drivers libvulkan1"; \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then root=; \
	elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then root=sudo; \
	else \
	  echo "No Vulkan driver found: the WGSL tests are going to be skipped. To run them, install" >&2; \
	  echo "  Debian, Ubuntu:  sudo apt-get install $$packages" >&2; \
	  echo "  Fedora:          sudo dnf install mesa-vulkan-drivers vulkan-loader" >&2; \
	  echo "  Arch:            sudo pacman -S vulkan-swrast vulkan-icd-loader" >&2; \
	  exit 0; \
	fi; \
	echo "No Vulkan driver found: installing $$packages"; \
	$$root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$root apt-get install -qq -y --no-install-recommends $$packages

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage
