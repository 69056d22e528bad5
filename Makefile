# make demo   base package without torch, then the main job on the shipped recording
# make lint   format and lint, without torch
# make check  the fast loop: lint, types, layers, and the tests of decoding, policies, traces, sim and reports
# make test   every check and test but those that take minutes, as CI runs them
# make lab    of these, the tests of the laboratory, a package of its own beside this one
# make pages   of these, whether the quick commands of README and docs print what the pages show
# make slow   the tests that take minutes, and every property on 200 examples
# make docs    what the pages show of commands, run and written again
# make site    all pages as a web site in build/site, with search and the Python API; any broken link fails
# make experiments   all of docs/experiments.md: measured, drawn and written again, in some minutes
# make fidelity   how well the terms of engines predict measured rows: ROWS=FOLDER (of PACELINE_DATA), and WRITE=--write for docs/fidelity.md
# make arena   what is new in the arena is played, and docs/leaderboard.md written again with its figure and JSON
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# As many workers as cores, each with one thread of torch. Each gets a run of neighbouring tests, which share fixtures,
# and takes from others once it is done. Modules are compiled once, as many tests start the command.
WORKERS ?= auto
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal --durations 10
INSTALL := $(BIN)/python -m pip install --quiet

ROWS ?= $(PACELINE_DATA)/engine_rows
fidelity: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.engines.fidelity $(ROWS) $(WRITE)

.PHONY: fidelity demo check test suite lab pages slow bench docs site experiments arena clean lint types layers

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
		|| { echo "$(PYTHON) is older than Python 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c "import ensurepip" \
		|| { echo "this Python cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Links, so that a type checker sees the folders as the packages they are.
.typing/paceline .typing/paceline_laboratory:
	mkdir -p .typing
	ln -sfn .. .typing/paceline
	ln -sfn ../laboratory .typing/paceline_laboratory

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --constraint constraints.txt --editable .
	touch $@

# The CPU build of torch, where its index can be reached; elsewhere whatever pip finds for the constraint.
# Nobody imports most modules of torch and transformers: each is compiled when somebody does, those of torch beside the
# second installation, which keeps one processor busy. With setuptools here no build fetches its own.
$(VENV)/.dev: pyproject.toml laboratory/pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --no-compile --retries 0 --timeout 5 --constraint constraints.txt \
		--extra-index-url https://download.pytorch.org/whl/cpu torch 'setuptools>=77'
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore -c "import torch" & \
	$(INSTALL) --no-compile --no-build-isolation --constraint constraints.txt \
		--editable '.[figures,runtime,search,dev]' --editable ./laboratory && wait
	touch $@ $(VENV)/.base $(VENV)/.lint

$(VENV)/.lint: pyproject.toml | $(BIN)/python
	$(INSTALL) "$$(grep -o 'ruff>=[0-9.]*' pyproject.toml)"
	touch $@

demo: $(VENV)/.base
	$(BIN)/paceline compare --trace smollm2

lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev .typing/paceline .typing/paceline_laboratory
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

check: lint types layers
	$(PYTEST) -q -x -m "not slow and not pages" tests/decoding tests/policies tests/traces tests/sim tests/reports

# Types and layers are looked at beside the tests, which wait for other processes at times.
test: lint $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs 3 --keep-going suite types layers

# In one run, so that each worker imports torch and collects tests once; without what explains an assert, which takes each
# worker 13 processor seconds to prepare: what failed is run again with it.
suite: $(VENV)/.dev
	$(PYTEST) --assert=plain -m "not slow" \
		|| { $(PYTEST) --last-failed --last-failed-no-failures none -m "not slow"; exit 1; }

lab: $(VENV)/.dev
	$(PYTEST) -m "not slow and not pages" tests/laboratory

pages: $(VENV)/.dev
	$(PYTEST) -m "pages and not slow" tests/docs

slow: $(VENV)/.dev
	HYPOTHESIS_PROFILE=many $(PYTEST) -m "slow or hypothesis"

# Every script; what they share is in benchmarks/shared and laboratory.
bench: $(VENV)/.dev
	for script in benchmarks/*.py benchmarks/beyond_chains/*.py benchmarks/sharing/*.py; do $(BIN)/python $$script || exit 1; done

# What commands print in the pages, written again; `--measured` also runs the benchmarks that pages show.
docs: $(VENV)/.dev
	$(BIN)/python -m tests.docs.options --write
	$(BIN)/python -m tests.docs.shown --write README.md docs/*.md

$(VENV)/.site: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

site: $(VENV)/.site .typing/paceline
	$(BIN)/python -m tests.docs.web_site
	$(BIN)/python -m mkdocs build

experiments: $(VENV)/.dev
	$(BIN)/paceline experiment all --page docs/experiments.md --figures docs/figures

arena: $(VENV)/.dev
	$(BIN)/paceline arena --make --oracles --add-policy specrouter,without=answers --page docs/leaderboard.md

clean:
	rm -rf $(VENV) .typing build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
