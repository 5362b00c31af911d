/* Makes a region for the scripts: make_region PATH UUID MIB. With --used as MIB it prints the MiB in use instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera_region_api.h"

static int print_used(const char *path)
{
    struct tessera_region *region;
    uint64_t bytes;
    if (tessera_region_open(path, &region) != TESSERA_ERROR_OK ||
        tessera_region_used(region, 0, &bytes) != TESSERA_ERROR_OK) {
        return 1;
    }
    printf("used_mib %llu\n", (unsigned long long)(bytes >> 20));
    return 0;
}

int main(int count, char **words)
{
    struct tessera_share_spec spec = {.share_id = "script", .device_count = 1};
    if (count != 4) {
        return 2;
    }
    if (strcmp(words[3], "--used") == 0) {
        return print_used(words[1]);
    }
    strncpy(spec.device[0].uuid, words[2], sizeof spec.device[0].uuid - 1);
    spec.device[0].memory_limit = strtoull(words[3], NULL, 10) << 20;
    int code = tessera_region_create(words[1], &spec);
    if (code != TESSERA_ERROR_OK) {
        fprintf(stderr, "make_region: %s\n", tessera_region_strerror(code));
    }
    return code != TESSERA_ERROR_OK;
}
