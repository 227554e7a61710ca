# Everything that CI does has a target here; CI calls only these.
.PHONY: all build test race vet fma fuzz conformance qemu targets targets-ci hostmetal msl-check conformance-metal conformance-metal-san conformance-metal-arm64 conformance-darwinkit hostmetal-arm64 drivers-arm64 conformance-darwinkit-arm64 darwin darwincheck metallib bench clean

all: vet test

build:
	go build -o bin/ ./cmd/turbotrellis

test:
	go test ./...

race:
	go test -race -short ./...

# vet also checks formatting and that go.mod is tidy.
vet:
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not gofmt-clean: $$unformatted"; exit 1; fi
	go vet ./...
	GOARCH=386 go vet ./...
	GOOS=windows go vet ./...
	go mod tidy -diff

# fma fails if a compiler fused a multiply with an add where bits are defined.
fma:
	scripts/fma.sh

# fuzz runs every fuzz target a fixed number of times (FUZZ).
FUZZ ?= 20000x
fuzz:
	scripts/fuzz.sh $(FUZZ)

# conformance runs the suite in its normal form on every backend that runs here.
conformance:
	CONFORMANCE_FORM=normal REQUIRE_BACKENDS=ref go test -count=1 -v -run TestBackends ./conformance

# qemu runs the tests of the packages that define bytes on arm64 and s390x.
qemu:
	scripts/qemu.sh

# targets runs the conformance digests on other architectures under qemu-user.
targets:
	scripts/targets.sh $(TARGETS)

# targets-ci is the part of it that CI runs.
targets-ci:
	scripts/targets.sh amd64-v1 amd64-v3 arm64 s390x

# hostmetal builds the Metal framework for Linux into build/hostmetal.
hostmetal:
	$(MAKE) -C internal/hostmetal

# msl-check compiles the shaders with real address spaces.
msl-check:
	go run ./internal/tools/mslcheck
	go test -count=1 -run MSL ./internal/tools/mslcheck

# conformance-metal runs the Metal backend and its driver over hostmetal: every case of the suite once,
# and a part of them under 16 orders of threads (64 with TURBOTRELLIS_LONG).
METAL := REQUIRE_BACKENDS=metal go test -count=1 -timeout 60m -tags metal,hostmetal
conformance-metal: hostmetal
	CONFORMANCE_FORM=normal $(METAL) -v -run '^(TestConformance|TestEveryKernel|TestConformanceOrders)$$' ./codec/gpu
	$(METAL) -skip '^(TestConformance|TestEveryKernel|TestConformanceOrders)$$' ./codec/gpu ./codec/metal ./gpu/...
	CGO_ENABLED=1 $(METAL) -race -short -run 'TestConcurrent|TestCloseDuringCalls' ./codec/gpu

# conformance-metal-san runs a shorter form over hostmetal built with AddressSanitizer and with UBSan.
SANITIZED = ASAN_OPTIONS=detect_leaks=0 REQUIRE_BACKENDS=metal go test -count=1 -short -tags metal,hostmetal \
	-run 'TestEveryKernel|TestFaults|TestOwned|TestConformance$$' ./codec/gpu
conformance-metal-san:
	$(MAKE) -C internal/hostmetal SAN=ubsan
	TURBOTRELLIS_HOSTMETAL=$(CURDIR)/build/hostmetal-ubsan/libhostmetal.so $(SANITIZED)
	$(MAKE) -C internal/hostmetal SAN=asan
	TURBOTRELLIS_HOSTMETAL=$(CURDIR)/build/hostmetal-asan/libhostmetal.so $(SANITIZED) \
		-exec "env LD_PRELOAD=$$(clang-19 -print-file-name=libclang_rt.asan-x86_64.so)"

# conformance-darwinkit runs every case of the suite, and the rest of conformance-metal in short form,
# through darwinkit, which a compiler of its own builds over hostmetal.
DARWINKIT := CGO_ENABLED=1 CC=$(CURDIR)/internal/hostmetal/darwinkit/cc REQUIRE_BACKENDS=metal go test -count=1 \
	-tags metal,hostmetal,darwinkit
conformance-darwinkit: hostmetal
	$(DARWINKIT) ./gpu/...
	CONFORMANCE_FORM=normal $(DARWINKIT) -timeout 60m -v -run '^TestConformance$$' ./codec/gpu
	$(DARWINKIT) -short -skip '^TestConformance$$' ./codec/gpu

# drivers-arm64 runs the tests of both drivers, and conformance-metal-arm64 and
# conformance-darwinkit-arm64 the suite in short form, for arm64 under qemu-user.
HOSTMETAL_ARM64 := GOARCH=arm64 TURBOTRELLIS_HOSTMETAL=$(CURDIR)/build/hostmetal-arm64/libhostmetal.so
QEMU_ARM64 := qemu-aarch64-static -L $(CURDIR)/build/arm64-root
hostmetal-arm64:
	$(MAKE) -C internal/hostmetal arm64
drivers-arm64: hostmetal-arm64
	$(HOSTMETAL_ARM64) CGO_ENABLED=0 REQUIRE_BACKENDS=metal go test -count=1 -short -tags metal,hostmetal \
		-exec '$(QEMU_ARM64)' ./gpu/metal ./gpu/metal/mtl
	$(HOSTMETAL_ARM64) $(DARWINKIT) -short -exec '$(QEMU_ARM64) -E GODEBUG=clobberfree=1' ./gpu/metal
conformance-metal-arm64: hostmetal-arm64
	$(HOSTMETAL_ARM64) CGO_ENABLED=0 REQUIRE_BACKENDS=metal go test -count=1 -short -timeout 30m -tags metal,hostmetal \
		-exec '$(QEMU_ARM64)' -run 'TestBadDevices|TestEveryKernel|TestFaults|TestConformance$$' ./codec/gpu
conformance-darwinkit-arm64: hostmetal-arm64
	$(HOSTMETAL_ARM64) $(DARWINKIT) -short -timeout 30m -exec '$(QEMU_ARM64)' -run Conformance ./codec/gpu

# darwin vets and links every package for a Mac, without cgo.
darwin:
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go vet -tags metal ./...
	scripts/link.sh darwin arm64 metal

# darwincheck type-checks what a Mac builds with cgo, which needs no Mac.
darwincheck:
	go test -count=1 ./internal/tools/darwincheck

# metallib, on a Mac with Xcode, compiles the shaders ahead of time into build/metallib.
metallib:
	go run ./internal/tools/metallib build/metallib

bench:
	go test -run '^$$' -bench . -benchtime 200ms ./...

clean:
	rm -rf bin build

# reader-check compares the reader in Python, written from docs/ alone, with the command.
.PHONY: reader-check
reader-check:
	internal/tools/reader/check.sh build/reader
