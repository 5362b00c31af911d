# The figures: programs over the simulated driver that print what they measured. Included by limiter/Makefile.

BENCH_LINK = -L$(OUT) -l:libtessera_region.so -L$(SIM) -l:libcuda.so.1 -Wl,--no-as-needed -l:libnvidia-ml.so.1 \
    -Wl,-rpath,$(abspath $(OUT)):$(abspath $(SIM)) -ldl
BENCH_HEADERS := bench/timing.h bench/card.h
BENCH_RUN = sh test/preload.sh $(abspath $(LIMITER)) $(abspath $(SIM))

$(BUILD)/bench_%: bench/bench_%.c $(BUILD)/elf.o $(HEADERS) $(BENCH_HEADERS) $(HELPERS) $(SIM_LIBS)
	$(CC) $(FLAGS) $(CFLAGS) -rdynamic $< $(BUILD)/elf.o -o $@ -pthread $(BENCH_LINK)

# Its 512 processes take their slots by the region's own functions.
$(BUILD)/bench_start: bench/bench_start.c $(HEADERS) $(BENCH_HEADERS) $(BUILD)/elf.o $(HELPER_SOURCES:%=$(BUILD)/%.o) $(SIM_LIBS)
	$(CC) $(FLAGS) $(CFLAGS) $(filter %.c %.o,$^) -o $@ -L$(SIM) -l:libcuda.so.1 -Wl,-rpath,$(abspath $(SIM)) -ldl

.PHONY: bench bench-device bench-overhead bench-compute bench-accuracy bench-floor bench-refusal bench-start bench-kill bench-audit test-kill
bench: bench-gate bench-overhead ## nanoseconds that the library adds to a call; start of the gate

bench-overhead: $(LIMITER) $(BUILD)/bench_overhead $(SIM_LIBS) ## nanoseconds that the library adds to a call
	sh bench/overhead.sh $(abspath $(LIMITER)) $(abspath $(SIM)) $(BUILD)/bench_overhead

bench-compute: $(LIMITER) $(BUILD)/bench_compute $(SIM_LIBS) ## nanoseconds that the library adds to a launch, without and with a limit
	@set -e; for milli in 0 900; do echo "limit $$milli milli"; $(BENCH_RUN) $(BUILD)/bench_compute $$milli; done

bench-accuracy: $(LIMITER) $(BUILD)/bench_accuracy ## how well a compute limit holds: a table, tab-separated (minutes)
	@TEST_TIMEOUT=3600 $(BENCH_RUN) $(BUILD)/bench_accuracy $(ACCURACY)

bench-floor: $(LIMITER) $(BUILD)/bench_accuracy ## how long an owner waits for its own that was lent: a table, tab-separated
	@TEST_TIMEOUT=3600 $(BENCH_RUN) $(BUILD)/bench_accuracy floor

bench-refusal: $(LIMITER) $(BUILD)/bench_refusal ## what the host sees when each family of allocations is refused
	@$(BENCH_RUN) $(BUILD)/bench_refusal

DEVICE_SECONDS ?= 60
bench-device: $(LIMITER) $(BUILD)/bench_device ## a compute limit in real time on the device that TESSERA_BENCH_UUID names, or a simulated one
	@TEST_TIMEOUT=3600 $(BENCH_RUN) $(BUILD)/bench_device $(DEVICE_SECONDS)

STARTS ?= 300
bench-start: $(LIMITER) $(BUILD)/bench_start ## microseconds that the library adds to a start, with 512 slots taken
	@TEST_TIMEOUT=600 sh test/preload.sh '' $(abspath $(SIM)) $(BUILD)/bench_start $(abspath $(LIMITER)) $(abspath $(SIM)) $(STARTS)

KILLS ?= 10000
KILL_SEED ?= 1
bench-kill: $(LIMITER) $(BUILD)/bench_kill ## how long 16 wait for what a killed process held, KILLS times at random points
	@TEST_TIMEOUT=3600 $(BENCH_RUN) $(BUILD)/bench_kill $(KILLS) $(KILL_SEED)

bench-audit: $(LIMITER) $(BUILD)/test_limiter_audit ## the symbols that end in the library, with it and without
	@$(BENCH_RUN) $(BUILD)/test_limiter_audit

test-kill: $(LIMITER) $(BUILD)/bench_kill ## the same 150 times, for its checks
	$(BENCH_RUN) $(BUILD)/bench_kill 150
