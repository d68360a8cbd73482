# The two commands of the README, and what they are made of. Everything else is CMake: see CMakePresets.json.
#   make demo    installs what is missing, builds, and runs decode attention over 2- and 4-bit caches of real data
#   make test    the same, and runs every test
JOBS ?= $(shell nproc)
PRESET ?= release
BUILD_DIR := build/$(PRESET)
FOSCAR := $(BUILD_DIR)/bin/foscar
SAMPLE := data/sample_kv.safetensors

.DEFAULT_GOAL := help
.PHONY: help setup configure build demo test clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@scripts/setup.sh system

configure: setup
	@mkdir -p build
	@cmake --preset $(PRESET) >$(BUILD_DIR).configure.log 2>&1 || { cat $(BUILD_DIR).configure.log; exit 1; }
	@sed -n 's/^-- FOSCAR: //p' $(BUILD_DIR).configure.log

build: configure
	@cmake --build $(BUILD_DIR) -j $(JOBS)

demo: configure
	@cmake --build $(BUILD_DIR) -j $(JOBS) --target foscar_tool
	@echo; echo "The sample: keys and values of a language model"
	@$(FOSCAR) run --input $(SAMPLE) --format k2v2-token-g128-f32
	@$(FOSCAR) run --input $(SAMPLE) --format k4v4-token-g128-f32
	@echo; echo "The sample repeated, with noise, to a context of 32768 tokens"
	@$(FOSCAR) run --input $(SAMPLE) --extend-to 32768 --format k2v2-token-g128-f32
	@$(FOSCAR) run --input $(SAMPLE) --extend-to 32768 --format k4v4-token-g128-f32

test: build
	@scripts/setup.sh python
	@scripts/python_package.sh $(BUILD_DIR)
	@scripts/test.sh $(BUILD_DIR) $(JOBS)

clean:
	rm -rf build .venv
