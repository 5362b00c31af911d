# The placement kernel: one small library of pure functions, and its test. Included by limiter/Makefile.

PLACE := $(OUT)/libtessera_place.so
PLACE_SOURCES := place/place.c place/baseline.c place/published.c
PLACE_HEADERS := place/place.h place/baseline.h place/published.h
# A fused multiply and add rounds once where numpy rounds twice.
PLACE_FLAGS := -std=c11 -D_GNU_SOURCE -ffp-contract=off -Wall -Wextra -Werror -fPIC -fvisibility=hidden -Iplace

.PHONY: place test-place
place: $(PLACE) ## build the placement kernel into $(OUT)

$(PLACE): $(PLACE_SOURCES) $(PLACE_HEADERS) place.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(PLACE_FLAGS) $(LDFLAGS_LIB) -Wl,-soname,libtessera_place.so $(PLACE_SOURCES) -o $@.new && mv $@.new $@

$(BUILD)/test_place: test/test_place.c $(PLACE_SOURCES) $(PLACE_HEADERS) test/check.h
	@mkdir -p $(@D)
	$(CC) $(SANITIZE) $(PLACE_FLAGS) $(filter %.c,$^) -o $@
test-place: $(BUILD)/test_place ## the placement kernel under the sanitizers
	$(BUILD)/test_place
