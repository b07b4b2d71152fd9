# Development targets; "make help" lists them. Users of the library need none.

GO       ?= go
BIN      := $(CURDIR)/bin
TESTENV  := $(BIN)/testenv
PKGS     ?= ./...
FUZZTIME ?= 20s
SOAK     ?= 60s
ROWS     ?= 1000000
EVENTS   ?= 2000000
SCHEDULES ?= 20000
SEED      ?=
TRACE     ?=
STEPS     ?= 40
STRESS    ?= 5
RELEASES  ?=

GOLANGCI_VERSION := v2.15.0
GOLANGCI         := $(shell command -v golangci-lint || ls $(shell $(GO) env GOPATH)/bin/golangci-lint 2>/dev/null || echo $(BIN)/golangci-lint)

# SQLite is C made into Go: the race detector finds nothing in it, and takes five times its time.
NORACE := -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc=-race=false

RACE := -race $(NORACE) -vet=off -ldflags=-w -count=1 -timeout=30m

# The tests of PKGS, which may be of the module test or the command; with those of the other modules if these are all.
TESTS = $(if $(filter ./...,$(PKGS)),.ci/test )$(GO) $(if $(filter ./test/%,$(PKGS)),-C test )$(if $(filter ./cmd/boxpair,$(PKGS)),-C cmd/boxpair )test $(RACE) $(patsubst ./cmd/boxpair,.,$(patsubst ./test/%,./%,$(PKGS)))

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: $(TESTENV) ## all tests, the library's under -race but for the relay's core, on a PostgreSQL and a RabbitMQ of their own (PKGS=./some/package: its tests only)
	GO=$(GO) RACE="$(RACE)" $(TESTENV) -- $(TESTS)

.PHONY: stress
stress: $(TESTENV) ## the same STRESS times, 5 by default, beside a busy loop on every core: what failed, and how often (PKGS)
	GO=$(GO) RACE="$(RACE)" $(TESTENV) -- .ci/stress $(STRESS) $(BIN)/stress $(TESTS)

.PHONY: cover
cover: $(TESTENV) ## test coverage, into coverage.out
	$(TESTENV) -- $(GO) test -count=1 -timeout=15m -coverpkg=./... -coverprofile=coverage.out $(PKGS)
	$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: bench
bench: $(TESTENV) ## benchmarks, with allocations
	$(TESTENV) -- $(GO) test -run='^$$' -bench=. -benchmem $(PKGS)

.PHONY: bench-check
bench-check: ## statements, WAL and allocations per message against bench/budget.json; under a minute
	@$(GO) -C bench test -count=1 .
	@$(GO) -C bench build -o $(BIN)/bench .
	@cd bench && $(BIN)/bench check

.PHONY: bench-suite
bench-suite: ## this library beside its limits and peers (QUICK=1: some ten minutes; otherwise about 60, into docs/performance.md and bench/results; SCALE=0.3: with fewer messages)
	@$(GO) -C bench build -buildvcs=auto -o $(BIN)/bench .
	@cd bench && $(BIN)/bench suite $(if $(SCALE),-scale $(SCALE)) $(if $(QUICK),-quick,-doc ../docs/performance.md -profile $(BIN)/profiles)

.PHONY: backlog
backlog: ## healthy events beside a backlog of EVENTS events of a dead route: latency and memory; needs an idle machine
	@$(GO) -C bench build -o $(BIN)/bench .
	$(BIN)/bench backlog -events $(EVENTS)

.PHONY: audit-bench
audit-bench: $(TESTENV) ## boxpair verify on an outbox and an inbox of ROWS rows: time and memory
	@$(GO) -C test build -o $(BIN)/auditbench ./auditbench
	$(TESTENV) -- sh -c 'DATABASE_URL=$$TEST_DATABASE_URL exec $(BIN)/auditbench -rows $(ROWS)'

.PHONY: fuzz
fuzz: $(TESTENV) ## each fuzz test for FUZZTIME
	$(TESTENV) -- .ci/fuzz $(FUZZTIME)

.PHONY: mutants
mutants: $(TESTENV) ## break the library in many ways; each must fail a named test (ONLY=name)
	$(GO) -C test build -o $(BIN)/mutants ./cmd/mutants
	$(TESTENV) -- $(BIN)/mutants -only=$(ONLY)

.PHONY: mutants-list
mutants-list: ## print the mutants, the known hazards, and the tests that notice (ONLY=name)
	@$(GO) -C test run ./cmd/mutants -list -only=$(ONLY)

.PHONY: simulate
simulate: ## random schedules with faults at any step, without servers (SCHEDULES=1000000 SEED=1 TRACE=1)
	@BOXPAIR_SIM_TRACE=$(TRACE) .ci/simulate $(SCHEDULES) $(SEED)

.PHONY: model-check
model-check: ## every interleaving of a small model of leases and order, with Spin (RULE=NO_CLOCK: how it breaks without)
	@test/model/check $(RULE)

.PHONY: model
model: $(TESTENV) ## windows, leases and concurrent consumers against models of them (STEPS=200, RUN=Outcome: by name)
	@$(GO) -C test test -c -o $(BIN)/model.test ./model
	@cd test/model && $(TESTENV) -- $(BIN)/model.test -test.timeout=5m -rapid.nofailfile -rapid.steps=$(STEPS) $(if $(RUN),-test.run='$(RUN)')

.PHONY: settings
settings: ## every configuration from YAML and from the environment; a few seconds, without servers
	$(GO) -C test test -race -count=1 ./settings

.PHONY: telemetry
telemetry: ## traces and metrics over a chain, with the SDK of OpenTelemetry; a few seconds, without servers
	$(GO) -C telemetry test -race -vet=off -ldflags=-w -count=1 ./...

.PHONY: watched
watched: $(TESTENV) ## the alert rules with promtool, the queries of the dashboards, and every command of docs/runbook.md; part of make test
	$(TESTENV) -- $(GO) -C test test -vet=off -count=1 ./watched

.PHONY: example
example: $(TESTENV) ## the order example on a PostgreSQL and a RabbitMQ of its own, with kills (ORDERS=4000)
	$(TESTENV) -- sh -c 'DATABASE_URL=$$TEST_DATABASE_URL AMQP_URL=$$TEST_AMQP_URL exec $(GO) run ./examples/orders -chaos -json $(if $(ORDERS),-orders=$(ORDERS))'

.PHONY: example-gorm
example-gorm: $(TESTENV) ## the example on GORM and its tests, on a PostgreSQL of its own; a few seconds
	TEST_AMQP_URL=unused $(TESTENV) -- sh -c 'DATABASE_URL=$$TEST_DATABASE_URL $(GO) -C examples/gorm run . && exec $(GO) -C examples/gorm test -race -vet=off -ldflags=-w -count=1 ./...'

.PHONY: matrix
matrix: ## the fault matrix, on servers of its own (QUICK=1: a part, under 90 s; RUN=Killed: by name)
	@$(GO) -C test test -c -tags faults -o $(BIN)/matrix.test ./matrix
	MATRIX_QUICK=$(QUICK) $(BIN)/matrix.test -test.parallel=8 -test.timeout=20m $(if $(RUN),-test.run='$(RUN)')

.PHONY: upgrade
upgrade: ## an older state of the library and this one side by side, on servers of its own; needs the history of the repository
	@$(GO) -C test test -count=1 -timeout=10m ./upgrade

.PHONY: compat
compat: ## stores, transport/amqp, chains and the example against the servers of other releases of Debian and Ubuntu; as root or with Docker (RELEASES="trixie sid")
	@$(GO) -C test build -o $(BIN)/compat-check ./compat
	@$(BIN)/compat-check -releases="$(RELEASES)"

.PHONY: compat-doc
compat-doc: ## the same, and write the table of docs/compatibility.md
	@$(GO) -C test build -o $(BIN)/compat-check ./compat
	@$(BIN)/compat-check -releases="$(RELEASES)" -document

.PHONY: compat-bench
compat-bench: ROUNDS ?= 3
compat-bench: ## the defaults beside plain code on the servers of other releases: the table of docs/performance/servers.md (RELEASES="bookworm sid", ROUNDS=3)
	@$(GO) -C test build -o $(BIN)/compat-check ./compat
	@$(BIN)/compat-check -releases="$(or $(RELEASES),bookworm sid)" -bench=$(ROUNDS)

.PHONY: brokers
brokers: $(TESTENV) ## which publishers of other brokers a relay may publish to: the table of docs/transports.md (RUN=kafka: by name)
	@$(GO) -C test test -c -o $(BIN)/brokers.test ./brokers
	@cd test/brokers && $(TESTENV) -- $(BIN)/brokers.test -test.v -test.parallel=4 -test.timeout=15m $(if $(RUN),-test.run='//$(RUN)')

.PHONY: brokers-doc
brokers-doc: $(TESTENV) ## write that table
	@$(GO) -C test test -c -o $(BIN)/brokers.test ./brokers
	@cd test/brokers && $(TESTENV) -- $(BIN)/brokers.test -document -test.v -test.parallel=4 -test.timeout=15m

.PHONY: soak
soak: ## a chain under load while everything is killed at random, for SOAK (BATCHES=1: with batches everywhere; STORE_FIRST=1: consumers store messages first; SEED=n, REPORT=file)
	@$(GO) -C test test -count=1 ./soak
	@$(GO) -C test build -buildvcs=auto -o $(BIN)/soak ./cmd/soak
	$(BIN)/soak -for=$(SOAK) $(if $(BATCHES),-batches) $(if $(STORE_FIRST),-store-first) $(if $(SEED),-seed=$(SEED)) $(if $(REPORT),-report=$(REPORT))

.PHONY: services
services: $(TESTENV) ## run the private servers until interrupted, and print where they are
	$(TESTENV)

.PHONY: lint
lint: $(GOLANGCI) ## golangci-lint (vet is one of its linters), the package graph
	$(GOLANGCI) run ./...
	cd test && $(GOLANGCI) run --build-tags faults ./...
	cd bench && $(GOLANGCI) run ./...
	cd examples/gorm && $(GOLANGCI) run ./...
	cd telemetry && $(GOLANGCI) run ./...
	cd cmd/boxpair && $(GOLANGCI) run ./...

.PHONY: fmt
fmt: $(GOLANGCI) ## format the code
	$(GOLANGCI) fmt ./...

.PHONY: tidy-check
tidy-check: ## fail if go.mod or go.sum is not tidy
	$(GO) mod tidy -diff
	$(GO) -C test mod tidy -diff
	$(GO) -C bench mod tidy -diff
	$(GO) -C examples/gorm mod tidy -diff
	$(GO) -C telemetry mod tidy -diff
	$(GO) -C cmd/boxpair mod tidy -diff

.PHONY: ci
ci: ## what the CI runs
	.ci/run

.PHONY: clean
clean: ## remove what these targets leave behind
	rm -rf $(BIN) coverage.out

# Always built, from the cache if nothing has changed. Not "go run": that would
# stand between this make and the command, and lose its exit status and signals.
.PHONY: $(TESTENV)
$(TESTENV):
	@$(GO) build -o $@ ./internal/testenv/cmd/testenv

$(BIN)/golangci-lint:
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
