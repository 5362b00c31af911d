# The fuzz targets: a region that somebody forged, an agent's answer, calls with any arguments. Included by limiter/Makefile.
#
# fuzz/corpus/NAME.hex keeps inputs, one a line. `make fuzz-replay` runs them under gcc's sanitizers and is part of
# `make test`; `make fuzz` looks for new ones for FUZZ_SECONDS each, with libFuzzer where clang is there (Debian, Ubuntu:
# apt-get install clang), else with random numbers. What libFuzzer keeps lies in build/fuzz/NAME; `make fuzz-keep` writes
# the smallest set that covers as much back into fuzz/corpus.

FUZZ_CC := $(shell command -v clang || command -v clang-14)
FUZZ_SECONDS ?= 60
FUZZ_INPUTS ?= 20000
FUZZ_TARGETS := region gate calls
SEED ?= 1000

FUZZ_NAMES_region := $(HELPER_SOURCES)
FUZZ_NAMES_gate :=
FUZZ_NAMES_calls := $(HELPER_SOURCES) $(HOOK_SOURCES)
FUZZ_OTHERS_gate := gate/answer.c
# The calls are linked in, like the sanitized tests: the driver is found past them.
FUZZ_LINK := -rdynamic -pthread -Wl,--no-as-needed -L$(SIM) -l:libcuda.so.1 -l:libnvidia-ml.so.1 -Wl,-rpath,$(abspath $(SIM)) -ldl
FUZZ_HEADERS := fuzz/input.h $(GATE_HEADERS)

define fuzz_rules
$(BUILD)/fuzz/fuzz_$(1): fuzz/fuzz_$(1).c $(FUZZ_OTHERS_$(1)) $(FUZZ_NAMES_$(1):%=$(BUILD)/asan/%.o) $(HEADERS) $(FUZZ_HEADERS) $(SIM_LIBS)
	@mkdir -p $$(@D)
	$(CC) $(FLAGS) $(SANITIZE) $$(filter %.c %.o,$$^) -o $$@ $(FUZZ_LINK)
$(BUILD)/fuzz/libfuzzer_$(1): fuzz/fuzz_$(1).c $(FUZZ_OTHERS_$(1)) $(FUZZ_NAMES_$(1):%=src/%.c) $(HEADERS) $(FUZZ_HEADERS) $(SIM_LIBS)
	@mkdir -p $$(@D)
	$(FUZZ_CC) -DLIBFUZZER -fsanitize=fuzzer $(FLAGS) $(SANITIZE) $$(filter %.c,$$^) -o $$@ $(FUZZ_LINK)
endef
$(foreach target,$(FUZZ_TARGETS),$(eval $(call fuzz_rules,$(target))))

FUZZ_PROGRAMS := $(FUZZ_TARGETS:%=$(BUILD)/fuzz/fuzz_%)
FUZZERS := $(if $(FUZZ_CC),$(FUZZ_TARGETS:%=$(BUILD)/fuzz/libfuzzer_%))

.PHONY: fuzz fuzz-replay fuzz-keep fuzz-sequences
fuzz-replay: $(FUZZ_PROGRAMS) ## the kept inputs of every fuzz target, under the sanitizers
	@set -e; for name in $(FUZZ_TARGETS); do $(BUILD)/fuzz/fuzz_$$name replay fuzz/corpus/$$name.hex; \
	    $(BUILD)/fuzz/fuzz_$$name random 300 $(SEED); done

fuzz: $(FUZZ_PROGRAMS) $(FUZZERS) fuzz-sequences ## look for inputs that break something, FUZZ_SECONDS for each target
	@set -e; for name in $(FUZZ_TARGETS); do \
	    if [ -z "$(FUZZERS)" ]; then $(BUILD)/fuzz/fuzz_$$name random $(FUZZ_INPUTS) $(SEED); continue; fi; \
	    mkdir -p $(BUILD)/fuzz/$$name; $(BUILD)/fuzz/fuzz_$$name unpack fuzz/corpus/$$name.hex $(BUILD)/fuzz/$$name; \
	    $(BUILD)/fuzz/libfuzzer_$$name -max_total_time=$(FUZZ_SECONDS) -max_len=1024 -print_final_stats=1 \
	        -artifact_prefix=$(BUILD)/fuzz/found-$$name- $(BUILD)/fuzz/$$name; done

fuzz-sequences: $(LIMITER) $(BUILD)/test_limiter_sequences ## random sequences of calls of every family, from SEED on
	sh test/preload.sh $(abspath $(LIMITER)) $(abspath $(SIM)) $(BUILD)/test_limiter_sequences 2000 $(SEED)

fuzz-keep: $(FUZZ_PROGRAMS) $(FUZZERS) ## write what is worth keeping back into fuzz/corpus (needs clang)
	@set -e; for name in $(FUZZ_TARGETS); do \
	    rm -rf $(BUILD)/fuzz/$$name-kept; mkdir -p $(BUILD)/fuzz/$$name-kept; \
	    $(BUILD)/fuzz/libfuzzer_$$name -merge=1 -max_len=1024 $(BUILD)/fuzz/$$name-kept $(BUILD)/fuzz/$$name 2>/dev/null; \
	    { grep '^#' fuzz/corpus/$$name.hex; $(BUILD)/fuzz/fuzz_$$name pack $(BUILD)/fuzz/$$name-kept; } >$(BUILD)/fuzz/$$name.hex; \
	    mv $(BUILD)/fuzz/$$name.hex fuzz/corpus/$$name.hex; done
