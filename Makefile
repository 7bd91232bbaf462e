# The front door. Every target first brings the machine to a working build (`make setup`, quick when there is
# nothing to do). Needs git and make; everything else installs itself on Debian 12.

SHELL := /bin/bash
# Clones in different folders share what ccache has.
export CCACHE_NOHASHDIR := 1
export CCACHE_BASEDIR := $(CURDIR)
JOBS ?= $(shell nproc)
OUT ?= out/demo
PREFIX ?= /usr/local

.PHONY: help setup build install wheel interop demo test soak bench bench-transfer bench-pause bench-delta bench-engine learn check chaos format clean

help:
	@echo 'make demo     a trainer improves a model through weft while a server generates (at most 10 minutes)'
	@echo 'make test     build and run all tests'
	@echo 'make build    programs in build/release/bin'
	@echo 'make interop  vLLM, TRL, the openai client from PyPI against weft, in a venv of their own (35 minutes at most)'
	@echo 'make soak     mixed load with a new version every second, SOAK_MINUTES=30'
	@echo 'make install  libweft with weft.h, find_package(weft) and pkg-config, into PREFIX ($(PREFIX))'
	@echo 'make wheel    the Python package as a wheel, in out/wheel'
	@echo 'make bench    speeds, each checked and compared with what a user would otherwise do'
	@echo 'make bench-transfer  push and pull of 1.19 GB beside iperf3, a bare loop, nginx and curl'
	@echo 'make bench-pause     what a commit does to sequences that decode'
	@echo 'make bench-delta     bytes and speed of deltas beside XOR and zstd, NeMo-RL, COO, zstd --patch-from'
	@echo 'make bench-engine    decode, prompts and serving beside llama.cpp (built here once, some six minutes)'
	@echo 'make learn    every algorithm of weft train with three seeds, against its bars (some 90 minutes on two cores; LEARN_SEEDS=1: a third)'
	@echo 'make check    format, layers, lints, clang-tidy, and the tests under sanitizers'
	@echo 'make chaos    faults in networks, processes and disks, 10,000 connections, schemathesis'
	@echo 'make format   rewrite the sources with clang-format'
	@echo 'make setup    install what a bare Debian 12 lacks'

setup:
	@tools/setup.sh

# The `ninja` line for preset $(1) and targets $(2).
define ninja
@[ -f build/$(1)/build.ninja ] || cmake --preset $(1)
@ninja -C build/$(1) -j $(JOBS) $(2)
endef

build: setup
	$(call ninja,release,weft)

install: setup
	$(call ninja,release,weft_shared)
	@cmake --install build/release --prefix $(PREFIX) --component library

wheel: setup
	@tools/wheel.sh

interop: setup
	$(call ninja,release,weft)
	@tools/interop.sh $(TESTS)

demo: build
	@mkdir -p $(OUT)
	@exec build/release/bin/weft train examples/demo.toml --out $(OUT)

test: setup
	$(call ninja,release,all)
	@ctest --test-dir build/release --output-on-failure -j $(JOBS)

bench: setup
	$(call ninja,release,all)
	@tools/bench.sh

bench-transfer:
	@tools/setup.sh bench
	$(call ninja,release,weft transfer_worker)
	@/usr/bin/python3 bench/transfer_bench.py $(BENCH_FLAGS)

bench-pause: setup
	$(call ninja,release,weft pause_worker transfer_worker)
	@/usr/bin/python3 bench/pause_bench.py $(BENCH_FLAGS)

bench-delta: setup
	$(call ninja,release,delta_bench weft weft-train)
	@/usr/bin/python3 bench/delta_bench.py $(BENCH_FLAGS)

# Configured again, so that oneDNN is found if it was only just installed.
bench-engine:
	@tools/setup.sh bench
	@cmake --preset release >/dev/null
	$(call ninja,release,weft engine_worker matmul_worker scheduler_bench)
	@/usr/bin/python3 bench/engine_bench.py $(BENCH_FLAGS)

learn: build
	@/usr/bin/python3 bench/learn.py

check: setup
	@tools/check.sh

chaos: setup
	$(call ninja,release,weft weft-sim)
	@tools/chaos.sh $(ROUNDS)

soak: setup
	$(call ninja,release,weft)
	@/usr/bin/python3 bench/soak.py

format: setup
	@git ls-files '*.h' '*.cc' | xargs clang-format-14 -i

clean:
	rm -rf build out
