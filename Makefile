# The commands of the project; `make help` lists them. Everything real is in scripts/ and CMake.
NPROC ?= $(shell nproc)
BUILD ?= build
TEXT ?= out/text/kjv.txt
TRAIN_FLAGS ?= --ranks 4 --experts 16 --top-k 2 --out out/train
PYTHON_FLAGS = -DMOK_BUILD_PYTHON=ON -DMOK_TEST_PYTHON="$(CURDIR)/.venv/bin/python"
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.NOTPARALLEL:
.PHONY: help build run test test-python test-torch test-gpu bench text format format-check sanitize fuzz cuda arm clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

$(BUILD)/build.ninja:
	cmake -S . -B $(BUILD) -G Ninja

build: ## install what is needed (root) or say what is missing, then build everything
	@scripts/setup build
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(NPROC)

run: ## build, then train the demonstration on the King James Bible, or on TEXT=FILE
	@scripts/setup $(if $(filter file,$(origin TEXT)),run,build)
	@$(if $(filter file,$(origin TEXT)),scripts/text)
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(NPROC) --target mok
	$(BUILD)/src/mok train --text "$(TEXT)" $(TRAIN_FLAGS)

test: ## build, then run every test
	@scripts/setup test
	cmake -S . -B $(BUILD) -G Ninja $(PYTHON_FLAGS)
	cmake --build $(BUILD) -j $(NPROC)
	ctest --test-dir $(BUILD) -j $(NPROC) --output-on-failure --no-tests=error

test-python: ## build the Python package and run its tests, without torch
	@scripts/setup test
	cmake -S . -B $(BUILD) -G Ninja $(PYTHON_FLAGS)
	cmake --build $(BUILD) -j $(NPROC) --target _core mok
	ctest --test-dir $(BUILD) -R '^Python[.]' --output-on-failure --no-tests=error

test-torch: ## the Python package's tests with torch, which is 3 GB to fetch
	@scripts/setup test
	@scripts/venv .venv-torch tests/requirements-torch.txt
	cmake -S . -B $(BUILD) -G Ninja $(PYTHON_FLAGS)
	cmake --build $(BUILD) -j $(NPROC) --target _core mok
	.venv-torch/bin/python -c 'import torch; print("torch", torch.__version__)'
	PYTHONPATH=$(BUILD)/python .venv-torch/bin/python -m pytest -p no:cacheprovider python/tests

test-gpu: ## on a machine with a GPU: build and run what needs it
	@scripts/setup build
	@scripts/test-gpu $(NPROC)

bench: build ## build, then run every benchmark
	@for bench in $(BUILD)/bench/bench_*; do [ ! -x "$$bench" ] || "$$bench"; done

text: ## write the King James Bible to out/text/kjv.txt
	@scripts/setup run
	@scripts/text

format: ## rewrite every source file as .clang-format has it
	@scripts/format -i

format-check: ## name what clang-format would change, and fail if there is anything
	@scripts/format --dry-run --Werror

sanitize: ## the labelled tests under ASan+UBSan and under ThreadSanitizer
	@scripts/setup build
	@scripts/sanitize asan $(NPROC)
	@scripts/sanitize tsan $(NPROC)

fuzz: ## run each fuzzer for FUZZ_SECONDS (30)
	@scripts/fuzz $(NPROC)

cuda: ## compile the CUDA parts, where there are any and a toolkit is found
	@scripts/cuda $(NPROC)

arm: ## as root on Debian: the CPU parts built for 64-bit Arm, their tests and training under qemu-user
	@scripts/arm $(NPROC)

clean: ## remove what was built; .venv and out stay
	rm -rf build build-asan build-tsan build-fuzz build-arm
