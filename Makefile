# `make demo` and `make test` need Python 3.11 or newer with pip, and make: they create .venv themselves.
# Once .venv is there nothing is downloaded again, until setup.py, pyproject.toml or constraints.txt changes.

PYTHON ?= python3
WORKERS ?= logical
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CONFORMANCE := $(VENV)/.conformance
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
EXTRAS := test,eval,train,serve,documents,video
TYPING_LINK := build/typing/arr_coc/modeling
# Workers of one thread each: threads of several workers would wait for each other. A worker takes about 1.5 GB.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow versions versions-oldest versions-newest clients fuzz conformance lint format typing-link clean

help: ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## ask the tiny model about an A4 page; writes demo.png
	$(BIN)/arr-coc ask examples/images/invoice.jpg "What is the tax?" --model hub_configs/arr-coc-tiny-2 --picture demo.png

test: $(INSTALLED) ## run the tests but the slow ones, on up to 4 cores (WORKERS=0: on one, in this process)
	$(PYTEST) -m "not slow"

test-slow: $(INSTALLED) ## run the tests that start servers, browsers and groups of processes, kill them, or train for long
	$(PYTEST) -m slow

versions: versions-oldest versions-newest ## run chosen tests with the oldest releases that setup.py states, and with the newest

# Environments beside .venv, new every time: `oldest` of the lower bounds in setup.py, `newest` of what pip finds today.
# Where torch is several GB there is one release of it for both.
versions-oldest: VERSIONS := -c build/oldest.txt -e ".[$(EXTRAS)]"
versions-newest: VERSIONS := -e ".[$(EXTRAS),trl]"
versions-oldest versions-newest: versions-%: $(INSTALLED)
	@mkdir -p build
	$(BIN)/python .ci/oldest.py > build/oldest.txt
	$(PYTHON) -m venv --clear build/$*
	build/$*/bin/python -m pip install --disable-pip-version-check --quiet --no-compile "torch==2.13.0"
	build/$*/bin/python -m pip install --disable-pip-version-check --quiet --no-compile $(VERSIONS)
	OMP_NUM_THREADS=1 build/$*/bin/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal -m versions \
		$$(grep -l mark.versions tests/test_*.py)

# Frameworks that ask a server, for tests/test_clients.py. LlamaIndex needs an older openai than `.venv` has.
clients: ## put LangChain and LlamaIndex into build/clients, with which a slow test asks the server
	$(PYTHON) -m venv --clear build/clients
	build/clients/bin/python -m pip install --disable-pip-version-check --quiet --no-compile \
		"langchain-openai==1.7.4" "llama-index-llms-openai-like==0.8.1"

fuzz: $(INSTALLED) ## try thousands of odd inputs, each an answer or the promised error; prints counts
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

conformance: $(CONFORMANCE) ## run transformers' own tests, which pip fetches once, on every combination of parts
	$(BIN)/python tests/conformance/distribution.py
	$(BIN)/python -m pytest -c tests/conformance/pytest.ini -n 2 tests/conformance

lint: $(INSTALLED) typing-link ## check format, style and types; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED) ## format the code and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typing-link: ## let mypy find modeling/ as arr_coc.modeling (pyproject.toml says why)
	@mkdir -p $(dir $(TYPING_LINK))
	@ln -sfn ../../../modeling $(TYPING_LINK)

clean: ## remove .venv and all that these targets write
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and by itself: a machine may have a CPU build at hand in its pip configuration, and the packages
# after it, which ask for any torch, then keep the one that is there.
$(INSTALLED): setup.py pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ARR-COC needs Python 3.11 or newer, and \
	$(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) "torch==2.13.0"
	$(PIP_INSTALL) -e ".[$(EXTRAS),demo]"
	@touch $@

$(CONFORMANCE): $(INSTALLED)
	$(PIP_INSTALL) -e ".[conformance]"
	@touch $@
