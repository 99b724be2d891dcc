# Every target sets up what it needs in .venv/ by itself. PYTHON: 3.11 or newer. TORCH=cpu: torch's CPU wheels, a fifth of the size.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: report test check nightly elsewhere gpu lab dashboard bench lint clean
.DEFAULT_GOAL := report

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(filter cpu,$(TORCH)),$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$(grep -oE '^torch(vision)?==[0-9.]+' requirements.txt) --index-url https://download.pytorch.org/whl/cpu)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m compileall -q lib
	touch $@

# Run the notebooks on this machine and assemble report/index.html (FULL=1: more steps, larger ceilings).
# A failing notebook is shown in the page and fails the target after the page is built. One process, so that it ends with make.
report: $(READY)
	@$(BIN)/python -m lib run --report $(if $(FULL),--full)

# Lint, tests, and every notebook once in quick mode on the reference data, whose key numbers must reproduce.
test: lint
	$(PYTEST)

# Lint and the unit tests: what is worth running after every change.
check: lint
	$(PYTEST) -m "not slow and not nightly and not elsewhere"

# All tests: also long fuzz, kills in many rounds, browsers, a cluster of two nodes, every benchmark at its smallest sizes, and
# the emulated machine.
nightly: lint
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .[cluster]
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -m "not elsewhere"
	$(MAKE) elsewhere

# The key numbers and the measuring notebooks on another machine, emulated, beside a busy neighbour.
elsewhere: $(READY)
	$(PYTEST) --dist loadgroup -m elsewhere

# On a machine with a GPU: run the steps of params/gpu.sh, then pack what they measured (data/gpu/bundle.zip). A second call
# resumes. BUDGET_MIN=8: minutes of this call. PY=python3: by that Python, where nothing can be installed. DEVICE=cuda:1: another card.
gpu: $(if $(PY),,$(READY))
	@PY=$(or $(PY),$(BIN)/python) BUDGET_MIN=$(BUDGET_MIN) DEVICE=$(DEVICE) bash params/gpu.sh

lint: $(READY)
	$(BIN)/ruff check .

lab: $(READY)
	$(BIN)/jupyter lab --notebook-dir=notebooks

# The dashboard with a project to try things with, and MLflow's pages beside it (PORT=8000).
dashboard: $(READY)
	@$(BIN)/python -m lib dashboard --demo $(if $(PORT),--port $(PORT))

# Timings that are no pass or fail: overhead, agreement of runs, peers, learning, start-up.
bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) figures/*/ report/executed report/replayed report/index.html
