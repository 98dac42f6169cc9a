# Every target installs what it needs; Python, pip and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --editable

.PHONY: help demo check test test-laws test-slow test-mpi lint format bench bench-mpi check-memory figures proto reference reproduce study-robustness study-networks study-streaming study-leakage study-privacy bench-communication faults faults-quick adversary clean
help:
	@echo "make demo             run the main job on data that ships with scikit-learn (seconds, once installed)"
	@echo "make check            lint, layers, types and the fast tests (two minutes)"
	@echo "make test             all tests except the slow ones (ten minutes)"
	@echo "make test-slow        real agents and ranks, commands of the docs, random cases; then test-mpi (twenty minutes)"
	@echo "make test-mpi         tests of the algorithms under mpiexec on four ranks; part of test-slow"
	@echo "make test-laws        property-based tests with fresh seeds and more examples (five minutes); SEED=number repeats a run"
	@echo "make lint             formatting, lint, layers, strict types"
	@echo "make format           format the code and apply automatic fixes"
	@echo "make bench            speed as ratios to the floor, into docs/benchmarks.md"
	@echo "make bench-mpi        the MPI engine: parity, cost of a round, scaling, predictions, into docs/cluster-figures.md"
	@echo "make bench-communication  rounds and bytes of every method, into docs/communication.md (DATA=folder with w8a and a9a)"
	@echo "make check-memory     fit a 2 GB file within 300 MB of anonymous memory"
	@echo "make figures          the pictures of the docs"
	@echo "make reference        docs/reference.md, from the code"
	@echo "make reproduce        the paper's experiments, into docs/reproduction (DATA=folder with w8a and a9a)"
	@echo "make study-robustness orthonormalisation, stopping and rounds, into docs/robustness.md (DATA=folder)"
	@echo "make study-networks   directed, time-varying and pairwise networks beside static ones, into docs/networks.md (DATA=folder)"
	@echo "make study-streaming  tracking and partial_fit while the subspace rotates, into docs/streaming.md"
	@echo "make study-leakage    what sites can rebuild of each other's rows, open and private, into docs/leakage.md (three minutes)"
	@echo "make study-privacy    private and open networks of real agents side by side, into docs/private-sums.md (a quarter of an hour)"
	@echo "make faults           real agents that are killed, frozen, cut off and attacked, into docs/faults.md (half an hour)"
	@echo "make faults-quick     the same with fewer runs and shorter faults (minutes)"
	@echo "make adversary        ten thousand random cases with fresh seeds against independent answers, into docs/adversary.md (half an hour)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	$(PIP) '.[demo]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	$(PIP) '.[dev]'
	@touch $@ $(VENV)/demo.stamp

demo: $(VENV)/demo.stamp
	$(BIN)/deepca demo

# one BLAS thread per worker: with as many workers as cores, more threads only wait for each other
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup
QUICK := $(addprefix tests/,_util conventions topology operators network data laws plots)

check: lint
	$(PYTEST) -q -m "not slow" $(QUICK)

test: $(VENV)/dev.stamp
	$(PYTEST) -m "not slow"

# one number determines the seeds of numpy's cases and the examples of hypothesis; pytest prints it when a law fails
test-laws: $(VENV)/dev.stamp
	@seed=$${SEED:-$$($(BIN)/python -c 'import secrets; print(1 + secrets.randbelow(10**6))')}; \
	echo "make test-laws SEED=$$seed"; \
	LAW_SEED=$$seed $(PYTEST) -m "hypothesis or law" --hypothesis-profile=fresh --hypothesis-seed=$$seed

test-slow: $(VENV)/dev.stamp
	$(PYTEST) -m slow
	$(BIN)/python -m tests.mpi_matrix

test-mpi: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mpi_matrix

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks --markdown docs/benchmarks.md

bench-mpi: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.cluster $(if $(DATA),--data $(DATA)) --out docs/cluster-figures.md

check-memory: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.memory --gigabytes 2 --columns 256 --most 300

figures: $(VENV)/dev.stamp
	$(BIN)/deepca demo --quiet --out docs/figures
	$(BIN)/python examples/fastmix_contraction.py docs/figures/fastmix.png
	$(BIN)/python -m studies.faults.timeline docs/figures/faults.png
	$(BIN)/python examples/spectral_clustering.py docs/figures/clustering.png
	$(BIN)/python examples/matrix_completion.py docs/figures/completion.png

proto: $(VENV)/dev.stamp
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src deepca/sites/protocol/wire.proto

reference: $(VENV)/dev.stamp
	$(BIN)/python docs/reference.py docs/reference.md

reproduce: $(VENV)/dev.stamp
	$(BIN)/deepca reproduce all $(if $(DATA),--data $(DATA)) --out reproduced
	mkdir -p docs/reproduction
	cp reproduced/report.md reproduced/*-iterations.png reproduced/*-rounds.png docs/reproduction/

study-robustness: $(VENV)/dev.stamp
	$(BIN)/python -m studies.robustness $(if $(DATA),--data $(DATA)) --out docs/robustness.md

study-networks: $(VENV)/dev.stamp
	$(BIN)/deepca topology random-digraph:0.1:20 --plot docs/figures/digraph.png
	$(BIN)/deepca topology matchings:torus:5x10 --plot docs/figures/matchings.png
	$(BIN)/python -m studies.networks $(if $(DATA),--data $(DATA)) --out docs/networks.md

study-streaming: $(VENV)/dev.stamp
	$(BIN)/python -m studies.streaming --out docs/streaming.md

study-leakage: $(VENV)/dev.stamp
	$(BIN)/python -m studies.leakage --out docs/leakage.md

study-privacy: $(VENV)/dev.stamp
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m studies.private_sums --out docs/private-sums.md

bench-communication: $(VENV)/dev.stamp
	$(BIN)/python -m studies.communication $(if $(DATA),--data $(DATA)) --out docs/communication.md

faults: $(VENV)/dev.stamp
	$(BIN)/python -m studies.faults --out docs/faults.md

faults-quick: $(VENV)/dev.stamp
	$(BIN)/python -m studies.faults --quick --out out/faults.md

adversary: $(VENV)/dev.stamp
	$(BIN)/python -m studies.adversary --cases 10000 --out docs/adversary.md

clean:
	rm -rf $(VENV) build demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
