# Everything that CI does has a target here; CI calls only these. CONTRIBUTING.md
# has a table of the environment variables.
.DEFAULT_GOAL := help
.PHONY: help build test race vet typecheck fma fuzz targets hostmetal metal metal-all cuda-check conformance-cuda msl darwin metallib reader-check mlx-check quality quality-smoke quality-models mutate bench bench-compare bench-peers cpu-levels nightly clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

build: ## the command, into bin/, with vector kernels where the toolchain has them
	GOEXPERIMENT=simd go build -o bin/ ./cmd/turbotrellis

test: ## every test that needs only Go
	go test -timeout 60m ./...

race: ## the short tests under the race detector
	go test -race -short ./...

vet: ## formatting, go vet, a tidy go.mod
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not gofmt-clean: $$unformatted"; exit 1; fi
	go vet ./...
	go mod tidy -diff

typecheck: ## types on macOS, 386, arm64 with CUDA, Windows, FreeBSD, Plan 9 and wasip1
	go test -count=1 -tags typecheck ./internal/tools/typecheck

FMA := arm64 amd64.v3 s390x
fma: ## no multiply is fused with an add: reads assembly (FMA="arm64 …")
	scripts/fma.sh $(FMA)

FUZZ := 20000x
fuzz: ## every fuzz target, FUZZ times each
	scripts/fuzz.sh $(FUZZ)

TARGETS := s390x
targets: ## the bits on other architectures under qemu-user (TARGETS="arm64 …")
	scripts/targets.sh $(TARGETS)

# The Metal backend on Linux. SENDER is how messages are sent: purego, or
# darwinkit, which a compiler of its own builds. ARCH=arm64 runs under qemu-user.
# SAN=asan, ubsan or both builds hostmetal with sanitizers.
comma := ,
SENDER := purego
ARCH :=
SAN :=
BUILD := $(CURDIR)/build/hostmetal$(addprefix -,$(SAN))$(addprefix -,$(ARCH))
EMULATOR := $(if $(ARCH),qemu-aarch64-static -L $(CURDIR)/build/arm64-root)
EXEC := $(EMULATOR)
METAL := REQUIRE_BACKENDS=metal TURBOTRELLIS_HOSTMETAL=$(BUILD)/libhostmetal.so
ifeq ($(SENDER),darwinkit)
METAL += CGO_ENABLED=1 CC=$(CURDIR)/internal/hostmetal/darwinkit/cc
# Its wrappers, of which few are called, take a minute to optimise.
GCFLAGS := $(foreach p,foundation metal,-gcflags=github.com/progrium/darwinkit/macos/$(p)="-N -l")
EXEC += $(if $(ARCH),-E GODEBUG=clobberfree=1)
else ifneq ($(ARCH),)
METAL += CGO_ENABLED=0
endif
ifneq ($(ARCH),)
METAL += GOARCH=$(ARCH)
endif
ifneq ($(filter asan both,$(SAN)),)
# A kernel's use of a stack after return takes eight times the CPU to find.
METAL += ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=$(if $(TURBOTRELLIS_LONG),1,0)
EXEC := env LD_PRELOAD=$$(clang-19 -print-file-name=libclang_rt.asan-x86_64.so)
endif
METAL += go test -count=1 -timeout 120m -tags metal,hostmetal$(if $(filter darwinkit,$(SENDER)),$(comma)darwinkit) \
	$(GCFLAGS) $(if $(strip $(EXEC)),-exec "$(strip $(EXEC))")

hostmetal: ## Metal's API on a CPU, into build/hostmetal (SAN=, ARCH=)
	$(MAKE) -C internal/hostmetal ARCH= SAN=$(SAN) $(if $(ARCH),$(ARCH))

metal: hostmetal ## the Metal backend over hostmetal (SENDER=, ARCH=, SAN=)
ifneq ($(SAN),)
	$(METAL) -short -run '^(TestEveryKernel|TestFaults|TestOwned|TestConformance)$$' ./codec/gpu
else ifneq ($(ARCH),)
	$(METAL) -short ./gpu/metal $(if $(filter purego,$(SENDER)),./gpu/metal/mtl)
	$(if $(filter purego,$(SENDER))$(TURBOTRELLIS_LONG),$(METAL) -short -run '^(TestBadDevices|TestEveryKernel|TestFaults$(if $(TURBOTRELLIS_LONG),|TestConformance))$$' ./codec/gpu)
else ifeq ($(SENDER),darwinkit)
	$(METAL) ./gpu/...
	$(METAL) -short -run '^(TestBadDevices|TestEveryKernel|TestFaults|TestConformance)$$' ./codec/gpu
else
	CONFORMANCE_FORM=normal $(METAL) -v -run '^(TestConformance|TestEveryKernel)$$' ./codec/gpu
	$(METAL) -skip '^(TestConformance|TestEveryKernel)$$' ./codec/gpu ./codec/metal ./gpu/...
	$(METAL) -short -run 'Backends|Devices|Open' ./codec/auto ./conformance ./cmd/...
	CGO_ENABLED=1 $(METAL) -race -short -run 'TestConcurrent|TestCloseDuringCalls|TestLostByMetal' ./codec/gpu
endif

metal-all: ## the same in every form, and hostmetal's own tests
	$(MAKE) -C internal/hostmetal test
	$(MAKE) -C internal/hostmetal test-arm64
	$(MAKE) metal
	$(MAKE) metal SAN=both
	$(MAKE) metal SENDER=darwinkit
	$(MAKE) metal ARCH=arm64
	$(MAKE) metal ARCH=arm64 SENDER=darwinkit

# The CUDA backend. cuda-check needs no GPU; SAN=memcheck, racecheck, synccheck or
# initcheck runs the short form of conformance-cuda under compute-sanitizer.
cuda-check: ## the kernels through NVRTC, the CUDA device over a driver in Go; without a GPU
	NVRTC=$$(scripts/nvrtc.sh build/nvrtc) && \
		TURBOTRELLIS_NVRTC=$(CURDIR)/$$NVRTC CGO_ENABLED=0 go test -timeout 60m -tags cuda ./gpu/cuda ./codec/cuda ./codec/auto

CUDA := REQUIRE_BACKENDS=cuda CGO_ENABLED=0 go test -count=1 -timeout 120m -tags cuda
CUDA_SANITIZER := compute-sanitizer --tool $(SAN) --error-exitcode 9 $(if $(filter memcheck,$(SAN)),--padding 256 --report-api-errors no)
conformance-cuda: ## the CUDA backend on an NVIDIA GPU (SAN=)
ifeq ($(SAN),)
	CONFORMANCE_FORM=normal $(CUDA) -v -run '^(TestConformance|TestEveryKernel)$$' ./codec/gpu
	CONFORMANCE_FORM=normal TURBOTRELLIS_TEST_FTZ=1 $(CUDA) -v -run '^(TestConformance|TestEveryKernel)$$' ./codec/gpu
	$(CUDA) -skip '^(TestConformance|TestEveryKernel)$$' ./codec/gpu ./codec/cuda ./gpu/...
	$(CUDA) -short -run 'Backends|Devices|Open' ./codec/auto ./conformance ./cmd/...
else
	TURBOTRELLIS_SANITIZED=$(SAN) $(CUDA) -short -exec '$(CUDA_SANITIZER)' -run '^(TestEveryKernel|TestExactBuffers|TestConformance)$$' ./codec/gpu
	TURBOTRELLIS_SANITIZED=$(SAN) $(CUDA) -short -exec '$(CUDA_SANITIZER)' -run Hardware ./gpu/cuda
endif

msl: ## compile the shaders with real address spaces
	go run ./internal/tools/mslcheck
	go test -count=1 -run MSL ./internal/tools/mslcheck

DARWIN := ./gpu/metal
darwin: ## link the device's tests for a Mac, without cgo (DARWIN=./...)
	scripts/link.sh darwin arm64 metal $(DARWIN)

metallib: ## on a Mac with Xcode: compile the shaders into build/metallib
	go run ./internal/tools/metallib build/metallib

reader-check: ## the reader in Python, written from docs/ alone, against the command
	internal/tools/reader/check.sh build/reader

mlx-check: ## affine weights against MLX and mlx-lm from PyPI, on Linux
	internal/tools/mlx/check.sh build/mlx

quality: ## what coding costs two language models: docs/quality.md and its picture (20 minutes)
	internal/tools/quality/run.sh build/quality all

quality-smoke: ## the presets on one model, held to what make quality measured
	internal/tools/quality/run.sh build/quality smoke

quality-models: ## the models of make quality beside llama.cpp
	internal/tools/quality/run.sh build/quality models

mutate: ## mistakes at random places that the tests must find
	go run ./internal/tools/mutate $(MUTATE)

bench: ## benchmarks; compare ratios within one run
	go test -run '^$$' -bench . -benchtime 200ms ./...

bench-compare: ## codec/cpu beside C on one core: the table of docs/performance.md
	scripts/bench-compare.sh

bench-peers: ## codec/cpu beside the Go modules of the same kind, which only this needs
	cd internal/tools/compare && GOEXPERIMENT=simd go test -run '^$$' -bench . -benchtime 100ms -count 3

cpu-levels: ## codec/cpu with vector kernels: every level that LEVELS names has to run
	GOEXPERIMENT=simd REQUIRE_CPU_LEVELS=$(LEVELS) go test -count=1 -short ./codec/cpu
LEVELS := scalar,avx2

nightly: export TURBOTRELLIS_LONG = 1
nightly: vet typecheck msl cuda-check reader-check mlx-check race metal-all ## the long form of everything: hours
	GOARCH=386 go vet ./...
	for os in windows freebsd plan9; do GOOS=$$os GOARCH=amd64 go vet ./... || exit; done
	GOOS=wasip1 GOARCH=wasm go vet ./...
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go vet -tags metal ./...
	GOARCH=arm64 CGO_ENABLED=0 go vet -tags cuda ./...
	$(MAKE) darwin DARWIN='./cmd/turbotrellis ./codec/gpu ./gpu/metal/...'
	go test -count=1 -timeout 300m ./...
	scripts/fma.sh
	scripts/targets.sh
	scripts/fuzz.sh 1000000x
	$(MAKE) quality-models quality-smoke
	$(MAKE) mutate

clean: ## remove bin/ and build/
	rm -rf bin build
