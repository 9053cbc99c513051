# make reproduce   the whole way at smoke scale: install, data, every notebook, the book
# make test        everything that proves the package
# make book        build the book from the recorded runs
# make bench       speed figures
# make clean       remove .venv, built pages and caches; recorded runs stay

PYTHON ?= python3
VENV ?= .venv
# Versions pip is held to. `make CONSTRAINTS=` lets pip choose (another CUDA build, for example).
CONSTRAINTS ?= constraints.txt
# What `make reproduce` needs, and what the tests need besides.
EXTRAS ?= notebooks,book,privacy
MORE ?= test,cluster,clip,tensorboard
JOBS ?= 2

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WHOLE := $(VENV)/.installed-all
# Empty if there is no environment, or its Python is gone: then it is made anew.
ALIVE := $(shell $(BIN)/python -c 'print("yes")' 2>/dev/null)
STARTED := $(shell date +%s)
NOTEBOOKS := $(wildcard notebooks)  # those of book/results run in the strict build

# pip would compile every file of every package; Python compiles those that are imported.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: reproduce test lint book bench install clean anew
.NOTPARALLEL:

reproduce: $(STAMP)
	@set -e; installed=$$(date +%s); \
	$(BIN)/fedrepro data prepare minidigits; \
	$(BIN)/fedrepro sweep fedpall mpft adcol i2pfl common --seeds 0 --scale smoke --jobs $(JOBS); \
	$(BIN)/fedrepro sweep fedapc --seeds 0,1 --scale smoke --jobs $(JOBS); \
	$(BIN)/fedrepro book --runs runs; \
	ended=$$(date +%s); \
	echo; \
	echo "The book's first page: $(CURDIR)/_build/html/index.html"; \
	echo "Time: $$((ended - $(STARTED))) s, of which $$((installed - $(STARTED))) s for the installation."

# One thread a process: two test workers share the cores, and a fixed count keeps runs comparable.
test: export OMP_NUM_THREADS = 1
test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist loadscope --nbval-lax tests $(NOTEBOOKS)

lint: $(WHOLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

book: $(STAMP)
	$(BIN)/fedrepro book $(if $(wildcard runs),--runs runs)

bench: $(STAMP)
	$(BIN)/fedrepro bench rounds

install: $(WHOLE)

# Asked for alone, everything comes in one go.
$(WHOLE): EXTRAS := $(EXTRAS),$(MORE)
$(STAMP) $(WHOLE): pyproject.toml $(CONSTRAINTS) $(if $(ALIVE),,anew)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedrepro needs Python 3.11 or later: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(if $(ALIVE),,--clear) $(VENV)
	$(BIN)/python -m pip install -q --no-compile $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$(EXTRAS)]'
	@touch $(STAMP) $@

clean:
	rm -rf $(VENV) _build build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
