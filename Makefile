# `make help` lists the targets. Every target sets up what it needs in .venv, once: the stamp files below are renewed
# only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# On a machine without a local CPU build of torch:
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
PIP := $(PY) -m pip install -qq --disable-pip-version-check --root-user-action=ignore -c constraints.txt $(PIP_ARGS)
DEMO := examples/fp16_overflow.py
# How long and how random: make fuzz FUZZ="--examples 100 --seed 7"
FUZZ ?=
GPU_OUT ?= benchmarks/results/gpu

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-frameworks browser test-recipes casebook fuzz check format bench gpu-check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-runtime ## Diagnose a failing example (sets up .venv on a fresh machine)
	@echo "$$ nanprobe diagnose $(DEMO)"
	@# The example fails on purpose, so the only right ending is exit code 1.
	@$(VENV)/bin/nanprobe diagnose $(DEMO); test $$? -eq 1

test: $(VENV)/.stamp-dev ## Run all tests except the framework tests
	$(PY) -m pytest

test-browser: $(VENV)/.stamp-dev browser ## Open the HTML report in a real browser (chromium, installed with apt-get where it can be)
	$(PY) -m pytest -m browser tests/reports

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		echo "installing chromium ..."; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	} || echo "chromium cannot be installed here (Debian and root only); the browser tests will be skipped"

test-frameworks: $(VENV)/.stamp-frameworks ## Diagnose real scripts on Transformers, Lightning, Accelerate and others
	$(PY) -m pytest -m frameworks tests/frameworks

test-recipes: $(VENV)/.stamp-dev ## Check every recipe: the failing scripts, and their fixed twins
	$(VENV)/bin/nanprobe check recipes --jobs 2

casebook: $(VENV)/.stamp-dev ## Diagnose every script of the casebook, and try remedies (half an hour)
	$(PY) -m pytest -m casebook tests/test_casebook.py tests/test_verify_casebook.py

check: $(VENV)/.stamp-dev ## Check format, lint and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy --strict nanprobe

format: $(VENV)/.stamp-dev ## Format the code and repair what the linter can
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

fuzz: $(VENV)/.stamp-dev ## Diagnose thousands of random programs with a fault put in, and print the figures (half an hour)
	PYTHONPATH=.:tests $(PY) -m fuzz.search $(FUZZ)

bench: $(VENV)/.stamp-frameworks ## Measure time and memory beside plain steps and other tools (ratios, not a test)
	$(PY) -m benchmarks

gpu-check: ## Compare the emulation with a real GPU (needs CUDA; uses the system's Python)
	PYTHONPATH=. $(PYTHON) benchmarks/gpu_check.py --out $(GPU_OUT)

clean: ## Remove .venv and everything the targets wrote
	rm -rf $(VENV) build dist benchmarks/results/bench.json benchmarks/results/gpu .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# hatchling is installed from constraints.txt like everything else, hence --no-build-isolation.
$(VENV)/.stamp-runtime: pyproject.toml constraints.txt
	@echo "setting up $(VENV) ..."
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-runtime
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/.stamp-frameworks: $(VENV)/.stamp-dev
	@$(PIP) --no-build-isolation -e '.[dev,frameworks]'
	@touch $@
