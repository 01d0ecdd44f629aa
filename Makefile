SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
# demo, test and image have steps in an order; go itself uses all processors.
.NOTPARALLEL:

GO ?= go
export GO

.PHONY: help
help: ## show this list
	@echo 'Bouvet runs code that nobody trusts in a sandbox of its own. Begin with: make demo'
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/bouvet and bin/bouvet-agent
	@scripts/build.sh

.PHONY: demo
demo: build image ## install what is missing, build, make the default image, run code in sandboxes
	@scripts/demo.sh

.PHONY: test
test: tools build image ## install what is missing, build, make the default image, run all tests
	@scripts/test.sh

.PHONY: tools
tools:
	@scripts/need.sh git cc fsck.erofs

.PHONY: lint
lint: ## check the code, its imports, its scripts and its dependencies
	@scripts/lint.sh

.PHONY: fmt
fmt: ## format the code
	@$(GO) tool -modfile=tools/go.mod golangci-lint fmt ./...

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (20s)
	@scripts/fuzz.sh

.PHONY: bench
bench: build image ## compare with bare runsc, bare QEMU and plain pipes; both numbers are printed
	@CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -timeout 40m ./test/bench/... ./test/daemon ./vm/qemu

.PHONY: image
image: build ## make the default image (Debian, Python, Node.js, bash), if it is not there yet
	@scripts/image.sh

.PHONY: kernel
kernel: build ## install QEMU and fetch a guest kernel, for --driver qemu and its tests
	@scripts/need.sh qemu-system-x86_64 lz4
	@bin/bouvet kernel fetch

.PHONY: minikernel
minikernel: build ## build the small guest kernel, with which QEMU's machines start sooner (minutes)
	@scripts/need.sh cc make strip flex bison bc perl xz libelf
	@bin/bouvet kernel build

.PHONY: soak
soak: image kernel ## half of BOUVET_SOAK (200) machines of each driver in a row, half in tens; QEMU's all with each kernel too
	@BOUVET_SOAK=$${BOUVET_SOAK:-200} CGO_ENABLED=0 $(GO) test -v -count 1 -p 1 -run '^Test(Real)?Soak' -timeout 2h ./vm/gvisor ./vm/firecracker ./vm/qemu

.PHONY: e2e-firecracker
e2e-firecracker: image kernel ## run the tests of FIRECRACKER=/path [JAILER=/path], or else QEMU's with KVM, in an emulated machine that has KVM
	@scripts/nested.sh "$(FIRECRACKER)" "$(JAILER)"

.PHONY: clean
clean: $(if $(filter 1,$(CLEAN_STATE)),build) ## remove what was built; with CLEAN_STATE=1 also leftovers of sandboxes and the default image
	@if [ "$${CLEAN_STATE:-}" = 1 ]; then bin/bouvet doctor --fix; bin/bouvet image rm default; fi
	@rm -rf bin internal/guest/bin/bouvet-agent
