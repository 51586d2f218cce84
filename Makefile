# jaxpp: `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 3

BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# A file's tests stay together: they share what starts processes, and what JAX has traced. When a process of tests crashes
# the run ends: with another one in its place, xdist waits for ever at the end.
PYTEST := $(BIN)/python -m pytest -n$(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
QUICK := $(addprefix tests/,lit $(addprefix unit/,schedules lowering tools test_repository.py test_jaxpp.py \
  runtime/execution/test_execute.py end_to_end/test_calls.py))
SEARCHES := $(addprefix tests/unit/schedules/test_,$(addsuffix .py,search improve docs))
OPTIMIZED := $(addprefix tests/unit/end_to_end/test_,$(addsuffix .py,memory models optimizers schedules split_backward))
# Half of the lit tests, which show what only processes of their own do: a crash as they end, exit codes, stray prints.
LIT ?= /basic[.]|_invalid[.]| (opt|jaxpp_schedule)/
# Schedules, sources, sockets and launchers have nothing of JAX, and of modules that are given as text the lit tests run
# all again.
WITHOUT_JAX := $(filter-out %/test_docs.py,$(wildcard tests/unit/schedules/test_*.py)) \
  $(addprefix tests/unit/test_,$(addsuffix .py,ci cluster playground release repository site benchmarks_published benchmarks_search benchmarks_partition prose)) \
  $(addprefix tests/unit/,$(addsuffix .py,tools/test_lit_inputs tools/test_schedule hlo_passes/test_lit_modules \
  ir/test_min_cut ir/test_recomputation planning/test_collectives \
  $(addprefix runtime/processes/test_,faults watchdog wire))) \
  tests/fuzz \
  tests/unit/healing tests/unit/ray $(addprefix tests/unit/,$(addsuffix .py,test_packaging test_benchmarks_gpu test_benchmarks_memory))
# Of the tests of each file `make rest` runs this part: `PART=1/4` is the first quarter. All, where there is none.
PART ?=
# Of `make fuzz`.
SECONDS ?= 600
INPUTS ?= 22000
FAULTS ?= 200
FIRST ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
# Python compiles what is imported, a small part of what is installed: half of the time of an install.
export PIP_NO_COMPILE := 1
# Python keeps what it compiled: tests start more than a hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install train test quick lint types unit fuzz faults faults-in-sums optimized rest hardware lit coverage docs docs-site docs-serve images format release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## Install jaxpp and what it is developed with into $VENV, .venv
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'error: $(PYTHON) is not Python 3.11 or newer; name one: make PYTHON=python3.11 ...' >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --editable '.[dev,examples]'
	@touch $@

train: $(STAMP) ## Train the example and compare it with plain jax.jit on one device
	$(BIN)/python examples/gpt.py --check

test: lint ## Everything below: lint, and side by side types, unit and lit tests; then a minute of generated steps
	+@$(MAKE) --no-print-directory -j2 types unit
	+@$(MAKE) --no-print-directory fuzz SECONDS=60 INPUTS=100

quick: lint ## A minute's worth: lint, lit tests, and unit tests that start few processes, compile and search little
	$(PYTEST) $(QUICK) $(addprefix --ignore=,$(SEARCHES))

lint: $(STAMP) ## ruff (the rules of our own, CHECK directives and layers, are unit tests)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## pyright, strict, with the oldest JAX: what JAX says of its own types changes from version to version
	@if $(BIN)/python -c 'import sys, jax; sys.exit(jax.__version_info__ >= (0, 11))'; then $(BIN)/basedpyright; \
	  else echo 'types: not checked here, but with JAX 0.10 (Python 3.11): what JAX says of its own types changes'; fi

unit: $(STAMP) ## Unit tests, and the lit tests in the same process
	$(PYTEST) --ignore=tests/hardware

fuzz: $(STAMP) ## Generated steps against jax.jit, for SECONDS=600, then INPUTS=22000 runs of the tools; or one, SEED= or INPUT=
	PYTHONPATH=tests PYTHONHASHSEED=0 $(BIN)/python -m fuzz \
	  $(if $(SEED)$(INPUT),$(if $(SEED),--seed $(SEED),--input $(INPUT)),--seconds $(SECONDS) --inputs $(INPUTS) --first $(FIRST))

faults: $(STAMP) ## Planted faults, which jaxpp-bisect must find, and sound programs: FAULTS=200, from seed FIRST=0 on; or one, SEED=
	PYTHONPATH=tests PYTHONHASHSEED=0 $(BIN)/python -m fuzz.faults --faults $(FAULTS) $(if $(SEED),--seed $(SEED),--first $(FIRST))

faults-in-sums: $(STAMP) ## Planted faults in the sums of gradients, which the passes must refuse: FAULTS=200, or one SEED=
	PYTHONPATH=tests PYTHONHASHSEED=0 $(BIN)/python -m fuzz.sum_faults --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

optimized: $(STAMP) ## Whole models against jax.jit, with XLA optimizing as it does for users
	XLA_FLAGS= $(PYTEST) $(OPTIMIZED)

rest: $(STAMP) ## Unit tests but those that `make optimized` runs, and those for which one JAX is enough; or PART=1/4
	$(PYTEST) --ignore=tests/hardware $(addprefix --part=,$(PART)) $(addprefix --ignore=,$(OPTIMIZED) $(WITHOUT_JAX))

hardware: ## Compile for TPUs and GPUs that are not here; installs their compilers, 1.5 GB, into .venv-hardware
	$(MAKE) install VENV=.venv-hardware
	.venv-hardware/bin/pip install --editable '.[tpu-plan,gpu-plan]'
	XLA_FLAGS= .venv-hardware/bin/python -m pytest tests/hardware  # libtpu refuses flags of XLA that it lacks

lit: $(STAMP) ## Lit tests by stock lit, which starts processes: each pass, each refusal, each tool; LIT=. for all
	$(BIN)/lit -sv -j$(JOBS) --filter '$(LIT)' tests/lit

coverage: $(STAMP) ## Unit and lit tests with branch coverage
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

docs: $(STAMP) ## Write docs/passes.md and the excerpts of docs/tour.md
	$(BIN)/python -m jaxpp.tools.docs

docs-site: $(STAMP) ## Build the site of docs/ in build/site; a link to a page or section that is not there fails
	$(BIN)/python docs/playground/assemble.py
	$(BIN)/mkdocs build --strict

docs-serve: $(STAMP) ## Show the site on http://localhost:8000, and follow edits
	$(BIN)/python docs/playground/assemble.py
	$(BIN)/mkdocs serve

images: $(STAMP) ## Make the pictures of docs/images/, one of which needs chromium
	$(BIN)/python docs/images/schedules.py
	PYTHONPATH=tests $(BIN)/python docs/images/step.py

format: $(STAMP) ## Let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

release: ## Build the sdist and the wheel, and check them in clean environments; VERSION=0.2.0 cuts this version first
	test -x .venv-release/bin/pip || $(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet build twine
	.venv-release/bin/python .ci/release.py $(VERSION)

clean: ## Remove what was built, but no environment
	rm -rf build dist *.egg-info .coverage .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
