# The commands to know: make bench, make test, make check. On a GPU machine with torch installed: make gpu-test, make gpu-bench.
# Each sets up what it needs. PYTHON is the interpreter that .venv is built from; ARGS is passed on (make bench ARGS="--arch a100").

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
VENV := .venv
VENV36 := .venv-triton36
VENVLIGHT := .venv-light
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
READY36 := $(VENV36)/.ready

.DEFAULT_GOAL := help
.PHONY: help bench test check lint types floors gate light gpu-test gpu-bench clean

help:
	@echo 'make bench      size sweep against torch.matmul (no GPU: checks every result on the CPU)  ARGS="..." is passed on'
	@echo 'make test       the CPU test suite; about 15 minutes on 2 cores'
	@echo 'make check      linters, type checker, floors, compile gate on both supported Triton versions'
	@echo 'make light      explain and verify with neither torch nor triton installed'
	@echo 'make gpu-test   the GPU test suite with the torch that is installed (no venv)'
	@echo 'make gpu-bench  the size sweep with the torch that is installed (no venv)'
	@echo 'make clean      remove the virtual environments'

bench: $(READY)
	@$(RUN) -m bench bench $(ARGS)

test: $(READY)
	@echo '== tests: CPU suite on $(WORKERS) workers'
	@$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal --timeout 300 -m 'not gpu' $(ARGS)

check: lint types floors gate

lint: $(READY)
	@echo '== ruff, vulture'
	@$(VENV)/bin/ruff check -q .
	@$(VENV)/bin/ruff format -q --check .
	@$(VENV)/bin/vulture

types: $(READY)
	@echo '== mypy --strict'
	@$(VENV)/bin/mypy --no-error-summary

floors: $(READY)
	@echo '== import-linter: imports go down only'
	@$(VENV)/bin/lint-imports --no-cache > $(VENV)/floors.log || { cat $(VENV)/floors.log; exit 1; }

# Needs no GPU: every row of every packaged table is compiled for its own capability and its machine code inspected.
gate: $(READY) $(READY36)
	@echo '== compile gate on the pinned triton'
	@$(RUN) -m bench table verify --compile
	@echo '== compile gate on triton 3.6.0'
	@PYTHONPATH=. $(VENV36)/bin/python -m bench table verify --compile

# Choosing, explaining and table checks without torch, triton or a GPU: the package as it installs, in a venv of its own.
light:
	$(python_at_least_311)
	@echo '== explain and table verify with neither torch nor triton'
	@test -x $(VENVLIGHT)/bin/python || $(PYTHON) -m venv $(VENVLIGHT)
	@grep -v -e '^torch==' -e '^triton==' constraints.txt > $(VENVLIGHT)/constraints.txt
	@$(VENVLIGHT)/bin/pip install -q --disable-pip-version-check -c $(VENVLIGHT)/constraints.txt 'pip>=25.3' numpy pydantic platformdirs filelock typer rich
	@$(VENVLIGHT)/bin/pip install -q --disable-pip-version-check --no-deps --force-reinstall --build-constraint constraints.txt .
	@cd $(VENVLIGHT) && bin/python ../tests/light/check.py

# The torch that is installed, no venv, no build: compile in parallel first, then one process on the GPU.
gpu-test:
	@PYTHONPATH=. $(PYTHON) -m pytest -q -m gpu tests/gpu $(ARGS)

gpu-bench:
	@PYTHONPATH=. $(PYTHON) -m bench bench $(ARGS)

clean:
	rm -rf $(VENV) $(VENV36) $(VENVLIGHT)

# --- virtual environments -------------------------------------------------------------------------------------------------------

define python_at_least_311
	@command -v $(PYTHON) >/dev/null || { echo 'minblas needs Python 3.11 or newer; $(PYTHON) was not found. Try: make $@ PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "minblas needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo 'Python lacks the venv module (Debian, Ubuntu: apt install python3-venv)'; exit 1; }
endef

# torch goes in first and alone, so that what follows cannot choose another build of it.
$(READY): constraints.txt pyproject.toml
	$(python_at_least_311)
	@echo '== setting up $(VENV) from constraints.txt: once; 1 to 10 minutes, nearly all of it the download of torch'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install -q --disable-pip-version-check 'pip>=25.3'
	@$(VENV)/bin/pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(VENV)/bin/pip install -q --disable-pip-version-check -c constraints.txt --build-constraint constraints.txt -e '.[bench]' --group dev
	@touch $@

# Compiling needs triton alone; torch 2.11 is not downloaded for it.
$(READY36): Makefile constraints.txt
	$(python_at_least_311)
	@echo '== setting up $(VENV36) with triton 3.6.0 for the compile gate: once; about a minute'
	@test -x $(VENV36)/bin/python || $(PYTHON) -m venv $(VENV36)
	@grep -v -e '^torch==' -e '^triton==' -e '^numpy==' constraints.txt > $(VENV36)/constraints.txt
	@$(VENV36)/bin/pip install -q --disable-pip-version-check -c $(VENV36)/constraints.txt triton==3.6.0 'numpy<2.4' pydantic platformdirs filelock typer rich
	@touch $@
