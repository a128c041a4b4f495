# The whole interface of a checkout. Every target makes .venv itself when it is missing or stale.
# PYTHON=... and JAVA_HOME say which Python (3.11 or later) and Java (17 or later) to take;
# SPARK=4.0 takes that Spark, in a .venv of its own.

VENV = .venv$(SPARK:%=-%)
export PYTHON SPARK
export PYSPARK_PYTHON = $(CURDIR)/$(VENV)/bin/python
# Another Spark or another program's paths, set in the user's shell, are not for us.
# Nor is a wish for no __pycache__: each of hundreds of processes would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
unexport SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME PYSPARK_DRIVER_PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo cluster-demo bench test test-all long rounds mutants servers explore faults
.PHONY: debounce soak outbox ports ownership-demo notebooks docs site screenshots lint bench-peers audit

# In several processes, each of which starts servers and a Spark of its own; ARGS="-n 2" takes two.
PYTEST = $(VENV)/bin/python -m pytest --dist worksteal

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile
	@awk 'BEGIN { print "Only test-all and rounds run what takes long, all or part of:" } \
	    FNR == 1 { gsub(/"""/, ""); title = $$0 } \
	    /^ *(@|.*marks=)?pytest\.mark\.(long|rounds)/ && !listed[FILENAME]++ \
	    { printf "%s: %s\n", FILENAME, title }' Makefile $(sort $(wildcard tests/*/*.py tests/*/*/*.py))

demo: ## send and receive 336 776 flights as three topics; ARGS="--help" lists options
	@.ci/environment java
	@$(VENV)/bin/python jobs/demo.py $(ARGS)

cluster-demo: ## the demo on a Redis Cluster, three ZooKeepers and a Spark cluster, with deaths
	@.ci/environment java
	@$(VENV)/bin/python jobs/cluster_demo.py $(ARGS)

bench: ## measure sending, receiving, latency and more into bench/results; ARGS="send" picks some
	@.ci/environment java
	@$(VENV)/bin/python bench/run_all.py $(ARGS)

test: ## try everything once on real servers, in 10 minutes on two cores; ARGS="-k name" picks some
	@.ci/environment java
	@$(PYTEST) -n 4 -m "not long and not rounds and not older_server" $(ARGS)

# Of the long tests, each commit runs its share.
TURN = $(shell git rev-list --count HEAD 2>/dev/null || echo 0)

test-all: ## run every test on each server, of the long ones a third, another with each commit
	@.ci/environment java
	@$(PYTEST) -n 4 -m "not rounds" --turn $(TURN) $(ARGS)

long: ## run all long tests, of which test-all runs a share; ARGS="-k notebooks" picks some
	@.ci/environment java
	@$(PYTEST) -n 3 -m "long and not rounds" $(ARGS)

rounds: ## kill, stop and cut off everything, each in a round of minutes; ARGS="-k soak" picks some
	@.ci/environment java
	@$(PYTEST) -n 2 -m rounds $(ARGS)

mutants: ## break each line of the scripts in turn; a test must fail; ARGS="-k claim" picks some
	@.ci/environment
	@$(PYTEST) -n 3 tests/lua/test_mutants.py $(ARGS)

servers: ## test on other Redis and Valkey servers; ARGS="--server /path/to/valkey-server"
	@.ci/environment java
	@$(VENV)/bin/python -m tests.run_servers --turn $(TURN) $(ARGS)

explore: ## try every order of calls in small worlds; ARGS="--help" lists options
	@.ci/environment
	@$(VENV)/bin/python -m tests.explore.explore $(ARGS)

faults: ## kill, stop and cut off real queries and Redis, and count; ARGS="--help" lists options
	@.ci/environment java
	@$(VENV)/bin/python -m tests.faults.run_faults $(ARGS)

debounce: ## kill a query while the keys that it consumes change, and count; ARGS="--help" lists options
	@.ci/environment java
	@$(VENV)/bin/python -m tests.faults.debounce $(ARGS)

soak: ## everything at once for an hour, with random kills, and count; ARGS="--minutes 15"
	@.ci/environment java
	@$(VENV)/bin/python -m tests.soak.soak $(ARGS)

outbox: ## kill the outbox job while orders come into PostgreSQL and MariaDB, and count; ARGS="--help" lists options
	@.ci/environment java
	@$(VENV)/bin/python -m tests.jobs.outbox_round $(ARGS)

ports: ## kill exports and streams between topics and other systems, and count; ARGS="--help" lists options
	@.ci/environment java
	@$(VENV)/bin/python -m tests.ports.port_round $(ARGS)

ownership-demo: ## queries and services share a topic through ZooKeeper, come, go and die; ARGS="--help" lists options
	@.ci/environment java
	@$(VENV)/bin/python -m tests.ownership.ownership_demo $(ARGS)

notebooks: ## run the notebooks and keep their outputs; ARGS="quickstart" picks some
	@.ci/environment java
	@$(VENV)/bin/python -m tests.notebooks.run_notebooks $(ARGS)

docs: ## write the tables of options, names and commands in docs/ from the code
	@.ci/environment
	@$(VENV)/bin/python docs/write_tables.py

site: ## write the documentation as a searchable site into site/; ARGS="serve" shows it while you write
	@.ci/environment
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs $(or $(ARGS),build --quiet)
	@$(if $(ARGS),,echo "To look at it: $(VENV)/bin/python -m http.server -d site")

screenshots: ## make the pictures of docs/console.md in a real browser (chromium on PATH)
	@.ci/environment
	@$(VENV)/bin/python docs/make_screenshots.py $(ARGS)

lint: ## check style, format, types, imports, and what pages, docstrings and notebooks say
	@.ci/environment
	@$(VENV)/bin/python -m ruff check .
	@$(VENV)/bin/python -m ruff format --check .
	@$(VENV)/bin/python -m mypy
	@$(VENV)/bin/python -m tests.texts

bench-peers: ## measure beside Kafka, RocketMQ, BullMQ and others, which it installs; ARGS="brokers" picks some
	@.ci/environment java npm mvn
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt 'rmq-spark[peers]'
	@npm install --prefix bench/peers --no-package-lock --no-audit --no-fund --loglevel error
	@$(VENV)/bin/python bench/run_all.py $(or $(ARGS),peers beside_kafka brokers)
	@$(VENV)/bin/python bench/charts.py

audit: ## compare the pinned packages with known vulnerabilities, where osv.dev can be reached
	@.ci/environment
	@$(VENV)/bin/python -m tests.security.audit $(ARGS)
