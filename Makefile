# llamapar: `make lab` opens the workbook, `make test` runs every test; both build .venv when needed.

PYTHON ?= python3
JOBS ?= 2
LAB_ARGS ?=
DOCS_GIT ?= build/docs.git

VENV := .venv
PY := $(VENV)/bin/python
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq -c constraints.txt
PYTEST := $(PY) -m pytest -n $(JOBS) --durations 30

.PHONY: help lab test lint soak deep bench oracles docs site constraints clean
.DELETE_ON_ERROR:

help:
	@echo "make lab          open the workbook in JupyterLab (LAB_ARGS: options of jupyter lab)"
	@echo "make test         ruff, mypy, pytest, every notebook, JupyterLab in a real browser"
	@echo "make lint         ruff, mypy and the check of plain code alone"
	@echo "make soak         the property tests and samples of 'make test' at their full counts, and most benchmarks"
	@echo "make deep         what the soak has no time for, and slips made in the core that tests must notice"
	@echo "make bench        run the measurements in benchmarks/"
	@echo "make oracles      the fixtures of tests/oracles anew that torch and transformers alone can make"
	@echo "make docs         build/docs: these pages as a site with search and versions, and docs/api anew from the docstrings"
	@echo "make site         build/site: Explorer, watch, clinic and course as pages that need no install (npm)"
	@echo "make constraints  pin anew: the newest releases that pyproject.toml allows"
	@echo "make clean        remove the environment and everything generated"
	@echo "PYTHON=python3.12 chooses the interpreter, JOBS=4 the number of test processes"

lab: $(VENV)/.lab-installed
	$(PY) jupyter/start.py notebooks/00_start_here.ipynb $(LAB_ARGS)

test: lint
	$(PYTEST) --dist loadfile --no-loadscope-reorder --nbval --nbval-kernel-name warm --nbval-cell-timeout 120 tests notebooks

lint: $(VENV)/.test-installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) tools/plain.py
	$(PY) -m mypy

soak: $(VENV)/.test-installed $(VENV)/.docs-installed
	$(PYTEST) --dist worksteal --soak tests

deep: $(VENV)/.test-installed
	$(PYTEST) --dist worksteal --deep tests
	$(PY) tools/mutations.py

bench: $(VENV)/.test-installed
	@set -e; for script in benchmarks/[!_]*.py; do echo "== $$script"; PYTHONPATH=tests $(PY) $$script; done

# The heads of the other scripts in oracles/ say which clones and packages they take.
oracles: $(VENV)/.test-installed
	@set -e; for name in chunks configs families headtail parameters schedules; do $(PY) oracles/make_$$name.py; done

# The site is made of links to what lies here: a link between two pages is the same there and on GitHub.
PAGES := README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md CODE_OF_CONDUCT.md CITATION.cff LICENSE docs notebooks

# mike keeps the versions of the pages as commits on a branch: of a repository of their own in build, or of the
# one that DOCS_GIT names. It calls mkdocs by its name.
MIKE = PATH="$(abspath $(dir $(PY))):$$PATH" NO_MKDOCS_2_WARNING=1 GIT_DIR=$(DOCS_GIT) \
  GIT_COMMITTER_NAME=llamapar GIT_COMMITTER_EMAIL=docs@localhost mike -q

docs: $(VENV)/.docs-installed
	$(PY) tools/api.py
	rm -rf build/pages && mkdir -p build/pages && ln -s $(PAGES:%=../../%) build/pages
	test -e $(DOCS_GIT) || git init --quiet --bare $(DOCS_GIT)
	version=$$($(PY) -c 'import llamapar; print(llamapar.__version__)') && \
	  $(MIKE) deploy --message "The pages of $$version" --alias-type redirect --update-aliases $$version latest
	$(MIKE) set-default --message "The newest pages come first" --allow-empty latest
	rm -rf build/docs && mkdir build/docs && git --git-dir $(DOCS_GIT) archive gh-pages | tar -x -C build/docs
	@echo "build/docs is made: $(PY) -m http.server -d build/docs"

site: $(VENV)/.test-installed
	$(PY) site/build.py

# One file marks each finished installation; it is made anew when what it was made from changes.
$(VENV)/.created:
	@command -v $(PYTHON) > /dev/null || { echo "llamapar: no '$(PYTHON)' here; name a Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("llamapar needs Python 3.11 or newer and $(PYTHON) is %d.%d; name another: make PYTHON=python3.12 ..." % v[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "llamapar: $(PYTHON) cannot make environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.lab-installed: pyproject.toml hatch_build.py constraints.txt | $(VENV)/.created
	@echo "Installing JupyterLab, PyTorch and the rest into $(VENV): minutes, and about 1.3 GB of disk, more where torch brings CUDA"
	$(PIP) -e '.[lab]'
	@touch $@

$(VENV)/.test-installed: $(VENV)/.lab-installed
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.docs-installed: $(VENV)/.lab-installed
	$(PIP) -e '.[docs]'
	@touch $@

# torch keeps its pin (its version decides which build a machine gets), and so do lines with a marker
# (packages of other systems): edit those by hand. Use the oldest Python that is supported, or releases
# that it cannot install may be chosen; tests/test_environment.py finds those.
# Left out: pip itself, and the CUDA packages, whose versions torch itself fixes.
constraints:
	rm -rf build/pins && mkdir -p build && $(PYTHON) -m venv build/pins
	grep '^torch==' constraints.txt > build/torch-pin.txt
	build/pins/bin/python -m pip install -qq -c build/torch-pin.txt -e '.[test,docs]'
	{ sed -n '/^#/p' constraints.txt; \
	  { sed -n '/;/p' constraints.txt; \
	    build/pins/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude wheel; } \
	  | sed -e '/^#/d' -e '/^nvidia-/d' -e '/^cuda-/d' -e '/^triton==/d' -e 's/+[a-z0-9.]*$$//' \
	  | LC_ALL=C sort -f; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/pins build/torch-pin.txt

clean:
	rm -rf $(VENV) .jupyter .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
