# Everything from a fresh clone. `make demo` and `make test` set up what they need: Debian packages, a virtual environment
# in .venv with TensorFlow, the op library, the Python package. docs/building.md says more.
#
#   make build   the set-up alone              make lint    ruff, mypy and clang-format
#   make demo    the MovieLens demo            make format  puts right what lint says of layout
#   make online  online learning: a trainer, a model server in C++, and users who click
#   make test    C++ and Python tests          make wheel   dist/*.whl
#   make test_distributed   those that start several processes; make test_gpu   those of GPUs
#   make soak    long counts                   make clean   removes what was built; distclean also .venv
#   make bench   speed beside other libraries  make docs  the site of the documentation, in build/site
#   make wheels  one for each TensorFlow       make matrix  and the tests beside each
#   make bare_systems   a wheel on bare Debians and Ubuntus
#   make cc_aarch64  C++ tests for 64-bit ARM, emulated; make wheel_aarch64  a wheel for it
#
# Settings: TENSORFLOW=tensorflow==2.16.2 (remembered in .venv), PYTHON=python3.12 (of which .venv is made),
# WHEELS_FOR='2.18.1 2.21.0', WHEEL=dist/NAME.whl, SYSTEMS='noble sid', DEMO_FLAGS, ONLINE_FLAGS, BENCH_FLAGS, PYTEST_FLAGS, BAZEL_FLAGS, SOAK_SHARE=0.1 (the part of the long counts to run).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

TENSORFLOW := $(or $(TENSORFLOW),$(shell bazel/default_tensorflow.sh))
export TENSORFLOW # to find_python.sh
SOAK_SHARE ?= 1

VENV := .venv
PY := $(VENV)/bin/python
BAZEL := bazel/bazel.sh
CONFIG := .tf_dynemb.bazelrc
# Another TENSORFLOW and other requirements have another stamp, and so a new environment.
VENV_STAMP := $(VENV)/made-$(firstword $(shell (echo '$(TENSORFLOW)'; cat requirements-dev.txt) | cksum))
# Younger than the configuration if somebody has installed another TensorFlow into .venv.
TENSORFLOW_FOUND := $(wildcard $(VENV)/lib/python3.*/site-packages/tensorflow*.dist-info)
GOOGLETEST := $(or $(TF_DYNEMB_GOOGLETEST),/usr/src/googletest)

CPP_FILES = $(shell find cc benchmarks examples -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.inc')

.PHONY: help build machine native demo online online_server bench docs test test_distributed test_gpu cc_test cc_asan cc_asan_not_large cc_tsan cc_aarch64 py_test soak lint format wheel wheel_aarch64 wheels matrix bare_systems clean distclean

help:
	@sed -n '1,/^$$/s/^# \?//p' Makefile

# --- set-up ----------------------------------------------------------------------------------------------------------

build: native

machine:
	@bazel/system_packages.sh

$(VENV_STAMP): | machine
	@echo "making .venv of $$(bazel/find_python.sh) with $(TENSORFLOW)"
	@python=$$(bazel/find_python.sh); "$$python" -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check '$(TENSORFLOW)' -r requirements-dev.txt
	@# Python sources are used in place: an edit is seen at once.
	@pwd > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tf_dynemb.pth"
	@echo '$(TENSORFLOW)' > $(VENV)/tensorflow
	@touch $@

$(TENSORFLOW_FOUND): ;

$(CONFIG): $(VENV_STAMP) $(TENSORFLOW_FOUND) configure.sh bazel/bazel.sh
	@./configure.sh --python=$(PY) --output=$@

# Bazel decides what there is to do. Installing unlinks the old file, which a running process may have open.
native: machine $(CONFIG)
	@echo "building the op library"
	@$(BAZEL) build $(BAZEL_FLAGS) //:native
	@install -C -m 644 bazel-bin/tf_dynemb/_build_info.py bazel-bin/tf_dynemb/_tf_dynemb_ops.so tf_dynemb/

# --- use -------------------------------------------------------------------------------------------------------------

demo: build
	$(PY) examples/movielens.py $(DEMO_FLAGS)

# docs/online-learning.md says more.
online: online_server
	$(PY) examples/online/run.py $(ONLINE_FLAGS)

define build_online_server
	$(BAZEL) build $(BAZEL_FLAGS) //examples/online/server:model_server
endef

online_server: build
	@bazel/system_packages.sh online
	@$(build_online_server)

# benchmarks/environments.sh makes the environments of the other libraries; docs/performance.md says more.
bench: build
	$(PY) benchmarks/run.py $(BENCH_FLAGS)

# Fails where a link leads nowhere or a documented name does not exist.
DOCS_STAMP := $(VENV)/docs-$(firstword $(shell cksum requirements-docs.txt))
$(DOCS_STAMP): $(VENV_STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

docs: $(DOCS_STAMP)
	@$(PY) -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

test: cc_test py_test

# What the C++ tests are run with: configuration and tags, and of which rooms. Those of cc/gpu that need a GPU skip
# themselves where there is none.
define run_cc_tests
	if [ -d '$(GOOGLETEST)' ]; then \
	  $(BAZEL) test $(BAZEL_FLAGS) $(1) $(or $(2),//cc/core/...) || { rc=$$?; [ $$rc = 4 ] && echo "no C++ test of this kind"; [ $$rc = 4 ]; }; \
	else \
	  echo "NOT RUN: the C++ tests. GoogleTest is not in $(GOOGLETEST): apt-get install googletest"; \
	fi
endef

# The C++ benchmarks, with flags of Google Benchmark.
define run_cc_benchmarks
	if [ -e /usr/include/benchmark/benchmark.h ]; then \
	  $(BAZEL) build $(BAZEL_FLAGS) //benchmarks:table_benchmark && bazel-bin/benchmarks/table_benchmark $(1); \
	else \
	  echo "NOT RUN: the C++ benchmarks. Google Benchmark is not there: apt-get install libbenchmark-dev"; \
	fi
endef

# One of each kind, those that are soon over.
SHORT_BENCHMARKS = dim:8/.*threads:2|_new/.*threads:2|Erase.*threads:2|Export|rows:10000/|SortAndGroup|SumByKey|Limit

cc_test: build
	@$(call run_cc_tests,,//cc/core/... //cc/gpu/...)
	@$(call run_cc_benchmarks,--benchmark_min_time=0.001 --benchmark_filter='$(SHORT_BENCHMARKS)')
	@$(BAZEL) build $(BAZEL_FLAGS) //benchmarks:lifecycle_benchmark && bazel-bin/benchmarks/lifecycle_benchmark restrict 10000

# NOT_LARGE leaves out the tests of size large, which take most of the time.
NOT_LARGE := --test_size_filters=-large --build_tests_only
cc_asan: build
	@$(call run_cc_tests,--config=asan --test_timeout=2400 $(CC_TEST_FLAGS))

cc_asan_not_large: CC_TEST_FLAGS := $(NOT_LARGE)
cc_asan_not_large: cc_asan

cc_tsan: build
	@$(call run_cc_tests,--config=tsan --test_timeout=2400)

# For 64-bit ARM: Debian's cross compiler, and an emulator that runs the tests, all but the large ones or those of TESTS.
cc_aarch64: $(CONFIG)
	@bazel/system_packages.sh aarch64
	@$(call run_cc_tests,--config=aarch64 --test_timeout=2400 $(if $(TESTS),,$(NOT_LARGE)),$(TESTS))

# A process for each core, with TensorFlow in each: PYTEST_FLAGS='-n 0' has one alone. What the tests of
# a file share is made once. The files come in order of names, in which those with the longest tests are not last.
PYTEST = $(PY) -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

py_test: build
	@if bazel/system_packages.sh online; then \
	  $(build_online_server); \
	else \
	  echo "NOT RUN: the tests of examples/online, which need these packages"; \
	fi
	$(PYTEST) tests --ignore tests/distributed $(PYTEST_FLAGS)

# Those of several replicas and processes take a third as long as all others. The longest file first.
DISTRIBUTED_TESTS ?= tests/distributed/test_spread_tables.py tests/distributed
test_distributed: build
	$(PYTEST) $(DISTRIBUTED_TESTS) $(PYTEST_FLAGS)

# Tables on GPUs, and those in host memory beside GPUs. Without a GPU these are simulated in host memory: tests/host_gpus.py.
# Left out: a table that is made within a step, which XLA would compile; shards of one GPU, which there are not; and a measurement of the
# process, in which a GPU's driver takes memory too.
GPU_TESTS := $(addprefix tests/unit/test_,optimizer_twins.py variable.py variable_dtypes.py variable_graph.py \
  variable_session.py lookup_bags.py embedding_layer.py gradients.py restrict.py snapshot.py snapshot_deltas.py \
  snapshot_strings.py keep_keys.py saving_checkpoint.py torchrec_collections.py torchrec_eviction.py torchrec_fading.py \
  collection_options.py distributed_embedding.py bounded_tables.py evicted_rows.py score_policy.py \
  admission.py admission_sketch.py counters.py)
NOT_ON_GPUS := --deselect tests/unit/test_saving_checkpoint.py::test_a_table_and_an_optimizer_made_after_the_restore \
  --deselect tests/unit/test_collection_options.py::TestPerTable::test_shards \
  --deselect tests/unit/test_torchrec_collections.py::test_options_of_a_table \
  --deselect tests/unit/test_snapshot.py::test_saving_and_restoring_take_no_second_copy
BESIDE_GPUS := $(addprefix tests/unit/test_,torchrec_collections.py collection_options.py lookup_bags.py restrict.py)
test_gpu: build
	@$(BAZEL) build $(BAZEL_FLAGS) //cc/kernels/testing:host_gpu
	TF_DYNEMB_TEST_GPUS=2 $(PYTEST) tests/gpu $(BESIDE_GPUS) $(PYTEST_FLAGS)
	@if grep -q 'CUDA_VERSION = ""' tf_dynemb/_build_info.py; then \
	  echo "NOT RUN: the tests of tables on a GPU. The op library was built without CUDA: docs/building.md"; \
	else \
	  TF_DYNEMB_TEST_GPUS=1 TF_DYNEMB_TABLES=gpu $(PYTEST) $(GPU_TESTS) $(NOT_ON_GPUS) $(PYTEST_FLAGS); \
	fi

# The tests marked soak, with long counts; SOAK_TESTS has the C++ ones. pytest says 5 where there are none.
SOAK_TESTS ?= //cc/core/... //cc/gpu/...
soak: export TF_DYNEMB_SOAK := 1
soak: export SOAK_SHARE := $(SOAK_SHARE)
soak: build
	@$(call run_cc_tests,--test_tag_filters=soak --build_tests_only --test_timeout=36000 --test_env=TF_DYNEMB_SOAK --test_env=SOAK_SHARE,$(SOAK_TESTS))
	$(PYTEST) tests -m soak --timeout 36000 $(PYTEST_FLAGS) || [ $$? = 5 ]
	@# What several processes do together may depend on which of them is first: 20 times.
	for round in $$(seq "$$(awk 'BEGIN { print int(20 * $(SOAK_SHARE)) }')"); do env -u TF_DYNEMB_SOAK $(PYTEST) tests/distributed tests/unit/test_launch.py $(PYTEST_FLAGS); done

lint: $(VENV_STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	@echo $(VENV)/bin/clang-format --dry-run -Werror cc
	@$(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)

format: $(VENV_STAMP)
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format
	@$(VENV)/bin/clang-format -i $(CPP_FILES)

wheel: build
	@$(BAZEL) build $(BAZEL_FLAGS) //:wheel
	@mkdir -p dist && install -m 644 bazel-bin/dist/*.whl dist/ && ls dist/*.whl

# For 64-bit ARM and this TensorFlow.
AARCH64_TENSORFLOW ?= 2.21.0
wheel_aarch64: $(CONFIG)
	@bazel/system_packages.sh aarch64
	@bazel/aarch64/wheel.sh $(AARCH64_TENSORFLOW)

# One for each TensorFlow, in clones of the last commit: bazel/wheels.sh says more. `matrix` runs the Python tests, too.
WHEELS_FOR ?= 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0 2.21.0 2.22.0rc0
MATRIX_TESTS ?= tests/unit tests/property

wheels: machine
	@bazel/wheels.sh $(WHEELS_FOR)

matrix: machine
	@MATRIX_TESTS='$(MATRIX_TESTS)' bazel/wheels.sh $(WHEELS_FOR)

# As root, with debootstrap.
WHEEL ?= $(lastword $(sort $(wildcard dist/*manylinux*$(shell uname -m).whl)))
SYSTEMS ?= bookworm trixie jammy noble
bare_systems:
	@SYSTEM_TESTS='$(SYSTEM_TESTS)' bazel/bare_systems.sh '$(WHEEL)' $(SYSTEMS)

clean:
	@[ ! -e bazel-bin ] || $(BAZEL) clean
	rm -rf build dist *.egg-info $(CONFIG) tf_dynemb/_tf_dynemb_ops.so tf_dynemb/_build_info.py

distclean: clean
	rm -rf $(VENV)
