# Two commands: `make demo` runs the main job, `make test` the tests. Both set
# up .venv first. `make parity` compares with transformers and TRL, which it
# installs.
PYTHON ?= python3
VENV := .venv
PLAN := .venv-plan
# The compilers that plan-check asks. With tpu,cuda12 also that of GPUs: some
# 4 GiB of libraries more.
PLAN_EXTRAS ?= tpu
# jax 0.11 and newer need Python 3.12: the first that runs, of the path and of
# pyenv, which has it without being on the path.
NEWEST_PYTHON ?= $(firstword $(shell for x in python3.12 python3.13 python3 \
  $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[23].*/bin/python3; do \
  $$x -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null \
  && echo $$x; done) python3.12)
NEWEST := .venv-newest
PACKAGE := .venv-package
DOCS := .venv-docs
BIN := $(VENV)/bin
# Real data for tests and experiments, where it is at hand.
SHARED_DATA := $(wildcard $(CURDIR)/../shared/data)
export PRM_JAX_DATA ?= $(SHARED_DATA)

OTHERS := stories or browser or faults or plan or real_weights or coq or ray
TESTS := -n 2 --dist=worksteal -m "not (slow or real_data or $(OTHERS))"
# Installed by apt if it isn't there.
CHROMIUM = command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || \
  { echo "this needs chromium on the PATH; install it, as by: apt-get install chromium" >&2; exit 1; }
# The files with tests of a mark: collecting all the others takes 7 s a process.
MARKED = $$(grep -rl --include='test_*.py' 'mark\.$(1)' tests | sort)
# The slowest files of `make faults`, which start first: otherwise the last of
# them would run alone.
FAULTS_FIRST := $(addprefix tests/,faults/test_peers.py faults/test_kills.py \
  faults/test_device_check.py runtime/test_distributed.py faults/test_disks.py \
  faults/test_signals.py)
# What takes most of the time: tests that compile or train models, launch
# processes, or install things.
SLOWEST := demo device_check docs huggingface models plan policy remote rl scoring \
  training runtime/test_distributed.py test_benchmarks.py test_public_api.py

.PHONY: demo test test-fast long stories browser newest package faults soak parity coq ray real plan-check lint \
  docs clean setup

demo: $(VENV)/.installed
	$(BIN)/prm-jax demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest $(TESTS)

# Data, labelling, grading, evaluation, checkpoints, the command line: what can be
# tested in two minutes. Add the folder that you change: make test-fast ALSO=tests/rl
test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest $(TESTS) $(addprefix --ignore=tests/,$(SLOWEST))
ifdef ALSO
	$(BIN)/python -m pytest $(TESTS) $(ALSO)
endif

# Tests that take more than a few seconds, and those of public sets, which are in
# the folder that PRM_JAX_DATA names; without it these are skipped.
long: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist=worksteal -m "(slow or real_data) and not ($(OTHERS))" \
	  $(call MARKED,\(slow\|real_data\))

# The scripts of stories/ as a newcomer runs them, and whether what they claim is so.
stories: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist=worksteal -m stories tests/stories

# The pages and the site as a person uses them, in chromium, which apt installs
# if it isn't there.
browser: $(VENV)/.browser docs
	@$(CHROMIUM)
	$(BIN)/python -m pytest -n 2 --dist=worksteal -m browser $(call MARKED,browser)

# The same tests on the newest jax and what else pip finds, which may be newer
# than constraints.txt. Its own environment, brought up to date each time.
newest: $(NEWEST)/.made
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[test,verify,tokamax]'
	$(NEWEST)/bin/python -m pytest $(TESTS)

# The wheel, installed alone in an empty environment and used in another folder:
# what a user of `pip install` has, who has no repository.
package: $(VENV)/.installed
	rm -rf build dist $(PACKAGE)
	$(BIN)/python -m build --outdir=dist
	$(PYTHON) -m venv $(PACKAGE)
	$(PACKAGE)/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	mkdir $(PACKAGE)/elsewhere
	cp docs/quickstart.ipynb tests/docs/run_notebook.py $(PACKAGE)/elsewhere
	cd $(PACKAGE)/elsewhere && ../bin/prm-jax doctor
	cd $(PACKAGE)/elsewhere && ../bin/prm-jax demo --quick
	cd $(PACKAGE)/elsewhere && ../bin/python run_notebook.py quickstart.ipynb

# Runs of the real commands that are killed, preempted, starved and damaged
# (docs/faults.md has the list). As root also on a disk that is really full.
faults: $(VENV)/.emulator $(VENV)/.browser
	@$(CHROMIUM)
	$(BIN)/python -m pytest -n 2 --dist=loadfile --no-loadscope-reorder \
	  -m faults $(FAULTS_FIRST) $(call MARKED,faults)

# A scoring server for half an hour, while its clients are killed.
soak: $(VENV)/.installed
	$(BIN)/python tests/serving/soak.py --minutes=30

# torch's threads wait for each other in a busy loop unless told not to.
parity: $(VENV)/.parity
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist=loadfile \
	  -m parity $(call MARKED,parity)

# Proofs, by a real coqtop. Apt's is a large download, so it isn't installed here.
coq: $(VENV)/.installed
	@command -v coqtop > /dev/null || { echo "this needs coqtop on the PATH; install it, as by: apt-get install coq" >&2; exit 1; }
	$(BIN)/python -m pytest -n 0 -m coq $(call MARKED,coq)

# Jobs on a real Ray cluster of this machine, with workers that are killed;
# RAY='ray and not slow' for the part that .ci/run has.
RAY ?= ray
ray: $(VENV)/.ray
	$(BIN)/python -m pytest -n 0 -m '$(RAY)' $(call MARKED,ray)

# Published weights, in the folder that PRM_JAX_WEIGHTS names
# (docs/published_weights.md); one process, which prints what it measured.
real: $(VENV)/.parity
	$(BIN)/python -m pytest -n 0 -rPs -m real_weights $(call MARKED,real_weights)

# What runs need on chips that aren't here, against their budgets. Its own
# environment: with a TPU's compiler installed, jax looks for a TPU.
plan-check: $(PLAN)/.$(PLAN_EXTRAS)
	$(PLAN)/bin/python -m pytest -m plan
	$(PLAN)/bin/prm-jax plan --check=experiments/plan_budgets.jsonl

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/using_prm_jax.py stories/*.py

# The documentation site, in site/; a warning or a broken link is an error.
docs: $(DOCS)/.installed
	$(DOCS)/bin/python docs/build_site.py

setup: $(VENV)/.installed

# The stamp is newer than what it was made from, or it is made again.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prm_jax needs Python 3.11 or newer; give one: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.ray: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,ray]'
	touch $@

$(VENV)/.emulator: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,emulator]'
	touch $@

$(VENV)/.browser: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,browser]'
	touch $@

$(VENV)/.parity: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,bench]'
	touch $@

$(PLAN)/.$(PLAN_EXTRAS): $(VENV)/.installed
	$(PYTHON) -m venv $(PLAN)
	$(PLAN)/bin/python -m pip install --quiet -c constraints.txt -e '.[test,$(PLAN_EXTRAS)]'
	touch $@

$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

$(NEWEST)/.made:
	@$(NEWEST_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	  { echo "$(NEWEST_PYTHON) isn't Python 3.12 or newer, which the newest jax needs: make newest NEWEST_PYTHON=/its/path" >&2; exit 1; }
	$(NEWEST_PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade pip
	touch $@

clean:
	rm -rf $(VENV) $(PLAN) $(NEWEST) $(PACKAGE) $(DOCS) build dist site .pytest_cache .mypy_cache .ruff_cache *.egg-info
