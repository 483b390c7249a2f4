# Two commands do everything on a fresh machine with Python and make: `make demo` and `make test`.
# `make demo QUICK=1` is shorter; `make demo IMAGES=photos/` takes your own photos.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints-cpu.txt
CHECKED := src tests benchmarks examples
# Tests run side by side, one thread each; more than eight would mostly load torch.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && n=8; echo $$n)

.PHONY: demo test test-slow lint browser bench docs web clean

demo: $(VENV)/.demo
	@$(BIN)/clearvit demo $(if $(QUICK),--quick) $(if $(IMAGES),--images "$(IMAGES)")

test: $(VENV)/.dev browser lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: $(VENV)/.dev
	@$(BIN)/python -m pytest -m slow

# The report is tested in Debian's chromium. Only CI installs it unasked; without it these tests are
# skipped and say so.
browser:
	@if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	&& ! command -v chromium >/dev/null; then \
		echo "installing chromium"; \
		(apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium) \
			>/dev/null 2>&1 || echo "no chromium: the browser tests will be skipped"; fi

lint: $(VENV)/.dev
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/extract.py
	@$(BIN)/python benchmarks/diagnose.py
	@$(BIN)/python benchmarks/views.py
	@$(BIN)/python benchmarks/testtime.py
	@$(BIN)/python benchmarks/planted.py
	@$(BIN)/python benchmarks/targets.py
	@$(BIN)/python benchmarks/cure.py --work build/cure
	@$(BIN)/python benchmarks/results.py

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

# The page of the microscope, from web/; only who changes it needs Node (20 or later).
web:
	@cd web && npm ci --silent && npm test --silent && npm run build --silent

# A stamp per set of extras: the set is installed again only when its list changes.
$(VENV)/bin/python:
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.%: $(VENV)/bin/python pyproject.toml constraints-cpu.txt
	@echo "installing clearvit[$*]"
	@$(PIP) -e ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache site
