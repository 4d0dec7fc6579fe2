# Two commands are enough for a newcomer: `make demo` and `make test`.
# Both make a virtual environment, put the pinned torch into it first (a range would pull the CUDA
# build and its gigabytes) and reuse it the next time.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
WORKERS ?= auto
SECONDS ?= 3600
SEED ?= 1

bin := $(VENV)/bin
ready := $(VENV)/.ready
demo := build/demo

.PHONY: help demo test lint docs documents mutants pairs needs attacks fuzz gpu benchmarks ruler ruler-record measure clean

help:
	@echo "make demo        rewrite the example project, train before and after, print the verdict"
	@echo "make test        lint, types and every test"
	@echo "make lint        ruff and mypy"
	@echo "make docs        build the documentation site into build/site"
	@echo "make documents   renew the tables in docs/"
	@echo "make mutants     plant every known defect; verify must catch each one"
	@echo "make pairs       correct migrations, every fixture among them; verify must pass each one"
	@echo "make needs       programs that need more than a short form; migrate must find it"
	@echo "make attacks     programs written to mislead verify; none that is wrong may pass, none that is right fail"
	@echo "make fuzz        an hour of programs with accidents (SECONDS=, SEED=); those with faults go to build/fuzz"
	@echo "make gpu         what needs a GPU, where there is one (TORCH= a build for it)"
	@echo "make ruler       tell what is written or said otherwise than at the last make ruler-record"
	@echo "make measure     count the tool's changed lines beside those of migrations by hand"
	@echo "make benchmarks  measure against the bars in docs/design.md"

$(ready): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fsdp-migrate needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	@test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (once; $(TORCH) and the development tools) ..."
	@$(bin)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(bin)/python -m pip install --quiet --disable-pip-version-check -e '.[verify,dev,docs]'
	@touch $@

demo: $(ready)
	@rm -rf $(demo) && mkdir -p $(demo) && cp -R fixtures/demo/before $(demo)/before
	@touch $(demo)/before/pyproject.toml && cp -R $(demo)/before $(demo)/after
	@printf '\n$$ fsdp-migrate migrate train.py\n'
	@state=$$(mktemp -d) && trap 'rm -rf "$$state"' EXIT && cd $(demo)/after && FSDP_MIGRATE_STATE="$$state" \
		$(abspath $(bin))/fsdp-migrate migrate --allow-dirty train.py
	@printf '\n$$ git diff --no-index --stat before after\n'
	@cd $(demo) && git --no-pager diff --no-index --stat before after || test $$? = 1
	@printf '\nRead the change: git diff --no-index %s/before %s/after\n' $(demo) $(demo)
	@printf 'See what was compared: cd %s && fsdp-migrate verify train.py --before before --after after\n' $(demo)

test: lint
	$(bin)/python -m pytest -q -n $(WORKERS) --dist loadscope -m "not mutants and not pairs and not attacks and not needs"

lint: $(ready)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

docs: $(ready)
	NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --strict

documents: $(ready)
	$(bin)/python -m tests.tools.documents

mutants: $(ready)
	$(bin)/python -m pytest -q -m mutants

pairs: $(ready)
	$(bin)/python -m pytest -q -m pairs

needs: $(ready)
	$(bin)/python -m pytest -q -m needs tests/attempts/test_needs.py

attacks: $(ready)
	$(bin)/python -m pytest -q -m attacks tests/verify/test_attacks.py

fuzz: $(ready)
	$(bin)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) --keep build/fuzz

gpu: $(ready)
	$(bin)/python -m pytest -q -rs -m gpu tests/verify/test_gpu.py

benchmarks: $(ready)
	for script in startup gate rewrite joined verify; do $(bin)/python benchmarks/$$script.py || exit 1; done

ruler-record: $(ready)
	$(bin)/python -m tests.ruler record build/ruler

ruler: $(ready)
	$(bin)/python -m tests.ruler compare build/ruler

measure: $(ready)
	$(bin)/python -m tests.measure

clean:
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
