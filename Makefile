# Two commands do everything on a fresh machine with Python and make: `make demo` and `make test`.
# `make demo QUICK=1` is shorter; `make demo IMAGES=photos/` takes your own photos.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make test CONSTRAINTS=` takes the newest of everything.
CONSTRAINTS ?= constraints-cpu.txt
PIP_QUIETLY := -m pip install --quiet --quiet --disable-pip-version-check
PIP := $(BIN)/python $(PIP_QUIETLY) $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
CHECKED := src tests benchmarks examples
# Tests run side by side, one thread each; more than eight would mostly load torch.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && n=8; echo $$n)

.PHONY: demo test test-slow test-lowest test-package dist lint browser results docs web clean

demo: $(VENV)/.demo
	@$(BIN)/clearvit demo $(if $(QUICK),--quick) $(if $(IMAGES),--images "$(IMAGES)") \
		$(if $(OUT),--out "$(OUT)")

test: $(VENV)/.dev browser lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: $(VENV)/.dev
	@$(BIN)/python -m pytest -m slow

# The oldest dependencies that pyproject.toml allows, in an environment of their own.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/backbones tests/images tests/report tests/artifacts tests/views tests/shards
test-lowest:
	@$(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python $(PIP_QUIETLY) -c constraints-lowest.txt -e ".[demo]" pytest pytest-timeout hypothesis
	@$(LOWEST)/bin/python -m pytest $(LOWEST_TESTS)

# Wheel and sdist; then both are installed into empty environments, where the quick demo runs.
dist: $(VENV)/.dev
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist . >/dev/null && ls dist

test-package: dist
	@$(BIN)/python -m pytest -m slow tests/test_package.py

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

# What is stale among the results, in order; it says first what and for how many hours, and resumes.
# `make results PLAN=1` only says it; `make results QUICK=1` tries everything on a few images, elsewhere.
results: $(VENV)/.dev
	@$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick) $(if $(PLAN),--plan)

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

# The page of the microscope, from web/; only who changes it needs Node (20 or later). Not npm ci: it
# wants packages for every platform, and mirrors may hold those of one.
web: $(VENV)/.dev
	@cd web && npm install --silent --no-save && npm test --silent && npm run build --silent
	@$(BIN)/python benchmarks/microscope_example.py --refresh

# A stamp per set of extras: the set is installed again only when its list changes.
$(VENV)/bin/python:
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.%: $(VENV)/bin/python pyproject.toml constraints-cpu.txt
	@echo "installing clearvit[$*]"
	@$(PIP) -e ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache site
