# The gate: one static program, its tests and its figures. Included by limiter/Makefile.

GATE := $(OUT)/tessera-gate
GATE_SOURCES := gate/gate.c gate/answer.c
GATE_HEADERS := gate/answer.h
GATE_FLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror

.PHONY: gate
gate: $(GATE) ## build the gate program into $(OUT)

$(GATE): $(GATE_SOURCES) $(GATE_HEADERS) gate.mk
	@mkdir -p $(@D)
	$(CC) $(GATE_FLAGS) -Os -static -ffunction-sections -fdata-sections -Wl,--gc-sections -s $(GATE_SOURCES) -o $@.new && \
	    mv $@.new $@

# -- tests: the answer's parser alone, and the program over a scripted agent ------------------------

$(BUILD)/asan/tessera-gate: $(GATE_SOURCES) $(GATE_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(GATE_FLAGS) $(SANITIZE) $(GATE_SOURCES) -o $@

$(BUILD)/test_gate_answer: test/test_gate_answer.c gate/answer.c $(GATE_HEADERS) test/check.h
	@mkdir -p $(@D)
	$(CC) $(GATE_FLAGS) $(SANITIZE) $(filter %.c,$^) -o $@

$(BUILD)/test_gate_program: test/test_gate_program.c test/check.h
	@mkdir -p $(@D)
	$(CC) $(GATE_FLAGS) $(SANITIZE) $< -o $@

.PHONY: test-gate mutants-gate valgrind-gate bench-gate
test-gate: $(GATE) $(BUILD)/asan/tessera-gate $(BUILD)/test_gate_answer $(BUILD)/test_gate_program ## the gate, with and without sanitizers
	$(BUILD)/test_gate_answer
	$(BUILD)/test_gate_program $(abspath $(BUILD)/asan/tessera-gate)
	$(BUILD)/test_gate_program $(abspath $(GATE))

# Not the static one: memcheck replaces libc's string functions, whose own wide reads it would report, by their symbols.
$(BUILD)/tessera-gate-dynamic: $(GATE_SOURCES) $(GATE_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(GATE_FLAGS) -O1 -g $(GATE_SOURCES) -o $@
valgrind-gate: $(BUILD)/tessera-gate-dynamic $(BUILD)/test_gate_program ## the gate under valgrind's memcheck
	VALGRIND=1 $(BUILD)/test_gate_program $(abspath $(BUILD)/tessera-gate-dynamic)

mutants-gate: $(BUILD)/test_gate_program ## break the gate on purpose; a test must notice each time
	sh test/mutants_gate.sh '$(CC)' $(BUILD)

$(BUILD)/bench_gate: bench/bench_gate.c
	@mkdir -p $(@D)
	$(CC) $(GATE_FLAGS) -O2 $< -o $@
bench-gate: $(GATE) $(BUILD)/bench_gate ## microseconds from starting the gate to its exit
	$(BUILD)/bench_gate $(abspath $(GATE)) 2000
