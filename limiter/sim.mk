# The simulated driver: libcuda.so.1, libnvidia-ml.so.1 and a static archive of the former.
# Included by limiter/Makefile and usable alone: make -f sim.mk sim | sim-asan | sim-test
# Paths are relative to limiter/. OUT is where the libraries go, OBJ where objects go.

OUT ?= ../src/tessera/_native
OBJ ?= build/obj
CC ?= cc
SIM_CFLAGS ?= -O2 -g
SIM_FLAGS := -std=c11 -D_GNU_SOURCE -fPIC -Wall -Wextra -Werror -fvisibility=hidden -pthread
SIM_LDFLAGS := -shared -pthread -Wl,-Bsymbolic -Wl,-z,defs

SIM_SHARED := cgroup clock description machine owner trace
SIM_CUDA := $(SIM_SHARED) array block capture context copy device driver footprint graph ipc launch memory multicast old pool \
    resolve stream stubs vmm
SIM_NVML := $(SIM_SHARED) nvml nvml_limits nvml_process nvml_stubs
SIM_HEADERS := $(wildcard sim/*.h sim/*.def abi/*.h abi/*.def)

SIM_LIBS := $(OUT)/sim/libcuda.so.1 $(OUT)/sim/libnvidia-ml.so.1 $(OUT)/sim/libcuda_sim.a

.PHONY: sim sim-asan sim-test sim-clean
sim: $(SIM_LIBS) ## build the simulated driver into $(OUT)/sim

$(OBJ)/sim/%.o: sim/%.c $(SIM_HEADERS) sim.mk
	@mkdir -p $(@D)
	$(CC) $(SIM_FLAGS) $(SIM_CFLAGS) -c $< -o $@

$(OUT)/sim/libcuda.so.1: $(SIM_CUDA:%=$(OBJ)/sim/%.o)
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_LDFLAGS) -Wl,-soname,libcuda.so.1 $^ -o $@.new && mv $@.new $@

$(OUT)/sim/libnvidia-ml.so.1: $(SIM_NVML:%=$(OBJ)/sim/%.o)
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(SIM_LDFLAGS) -Wl,-soname,libnvidia-ml.so.1 $^ -o $@.new && mv $@.new $@

# One relocatable object: an archive of several would leave weak stubs where a strong
# definition sits in a member that nothing else pulls in.
$(OUT)/sim/libcuda_sim.a: $(SIM_CUDA:%=$(OBJ)/sim/%.o)
	@mkdir -p $(@D)
	$(LD) -r $^ -o $(OBJ)/sim/libcuda_sim.o
	rm -f $@
	$(AR) rcs $@ $(OBJ)/sim/libcuda_sim.o

# -- tests, under AddressSanitizer and UndefinedBehaviorSanitizer ------------------------------

SIM_ASAN := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
SIM_TESTS := $(basename $(notdir $(wildcard test/test_sim_*.c)))

SIM_ASAN_LIBS := build/asan/sim/libcuda.so.1 build/asan/sim/libnvidia-ml.so.1

sim-asan: $(SIM_ASAN_LIBS) ## the same libraries under ASan and UBSan, in build/asan

build/asan/obj/sim/%.o: sim/%.c $(SIM_HEADERS) sim.mk
	@mkdir -p $(@D)
	$(CC) $(SIM_FLAGS) $(SIM_ASAN) -c $< -o $@

build/asan/sim/libcuda.so.1: $(SIM_CUDA:%=build/asan/obj/sim/%.o)
	@mkdir -p $(@D)
	$(CC) $(SIM_ASAN) $(SIM_LDFLAGS) -Wl,-soname,libcuda.so.1 $^ -o $@.new && mv $@.new $@

build/asan/sim/libnvidia-ml.so.1: $(SIM_NVML:%=build/asan/obj/sim/%.o)
	@mkdir -p $(@D)
	$(CC) $(SIM_ASAN) $(SIM_LDFLAGS) -Wl,-soname,libnvidia-ml.so.1 $^ -o $@.new && mv $@.new $@

build/asan/test_sim_%: test/test_sim_%.c test/check.h test/sim_world.h $(SIM_HEADERS) $(SIM_ASAN_LIBS)
	$(CC) $(SIM_FLAGS) $(SIM_ASAN) $< -o $@ -Lbuild/asan/sim -l:libcuda.so.1 -l:libnvidia-ml.so.1 \
	    -Wl,-rpath,'$$ORIGIN/sim' -ldl

sim-test: $(SIM_TESTS:%=build/asan/%) ## run the tests of the simulated driver
	@set -e; for t in $^; do echo "$$t"; $$t; done

sim-clean:
	rm -rf $(OUT)/sim build/asan $(OBJ)/sim
