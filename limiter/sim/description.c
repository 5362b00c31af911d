/* DESIGN
 *
 * Parses the description file of the simulated machine:
 *
 *     # comment
 *     driver version=13.0 context_mib=0 driver="580.65.06" kernel_us=10 sample_ms=100 memacct=misc
 *     device uuid=GPU-5e1a0000-0000-4000-8000-000000000000 name="NVIDIA A100-SXM4-80GB"
 *            memory_mib=81920 reserved_mib=0 sms=108 cc=8.0 pci=0000:07:00.0 numa=0
 *
 * One row per line (the example is folded for width). Every key has a default, so `device`
 * alone is a card. An unknown word, a bad number, a duplicate UUID or no device at all makes the
 * whole file malformed: a typing error must not silently become another machine.
 */
#include "description.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 64 * 1024, MAX_LINE = 1024 };

/* -- values ------------------------------------------------------------------------------- */

static bool number_of(const char *text, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    if (!isdigit((unsigned char)text[0])) return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value > most) return false;
    *out = value;
    return true;
}

static bool dotted(const char *text, int *major, int *minor)
{
    int used = 0;
    return sscanf(text, "%3d.%3d%n", major, minor, &used) == 2 && text[used] == '\0' &&
           *major >= 0 && *minor >= 0;
}

static bool uuid_of(const char *text, struct sim_device_row *row)
{
    static const int groups[] = {8, 4, 4, 4, 12};
    const char *at = text + 4;
    int nibbles = 0;
    if (strncmp(text, "GPU-", 4) != 0 || strlen(text) != 40) return false;
    for (int g = 0; g < 5; g++) {
        for (int i = 0; i < groups[g]; i++, at++, nibbles++) {
            if (!isxdigit((unsigned char)*at)) return false;
            int digit = isdigit((unsigned char)*at) ? *at - '0' : tolower(*at) - 'a' + 10;
            row->uuid_bytes[nibbles / 2] =
                (unsigned char)(nibbles % 2 == 0 ? digit << 4 : row->uuid_bytes[nibbles / 2] | digit);
        }
        if (g < 4 && *at++ != '-') return false;
    }
    memcpy(row->uuid, text, 41);
    return true;
}

static bool pci_of(const char *text, struct sim_device_row *row)
{
    int used = 0;
    return sscanf(text, "%8x:%2x:%2x.0%n", &row->pci_domain, &row->pci_bus, &row->pci_device,
                  &used) == 3 &&
           text[used] == '\0';
}

/* -- words -------------------------------------------------------------------------------- */

static bool copy_text(char *to, size_t room, const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length >= room) return false;
    memcpy(to, text, length + 1);
    return true;
}

static bool mib_of(const char *text, uint64_t *bytes)
{
    uint64_t mib;
    if (!number_of(text, 1ULL << 30, &mib)) return false;
    *bytes = mib * SIM_MIB;
    return true;
}

static bool int_of(const char *text, int *out)
{
    uint64_t value;
    if (!number_of(text, 1 << 20, &value)) return false;
    *out = (int)value;
    return true;
}

static bool device_word(struct sim_device_row *row, const char *key, const char *value)
{
    if (strcmp(key, "uuid") == 0) return uuid_of(value, row);
    if (strcmp(key, "name") == 0) return copy_text(row->name, sizeof row->name, value);
    if (strcmp(key, "memory_mib") == 0) return mib_of(value, &row->memory) && row->memory > 0;
    if (strcmp(key, "reserved_mib") == 0) return mib_of(value, &row->reserved);
    if (strcmp(key, "context_mib") == 0) return mib_of(value, &row->context);
    if (strcmp(key, "sms") == 0) return int_of(value, &row->sms) && row->sms > 0;
    if (strcmp(key, "cc") == 0) return dotted(value, &row->major, &row->minor);
    if (strcmp(key, "pci") == 0) return pci_of(value, row);
    if (strcmp(key, "numa") == 0) return int_of(value, &row->numa);
    if (strcmp(key, "integrated") == 0) return int_of(value, &row->integrated) && row->integrated <= 1;
    return false;
}

static bool scaled(const char *value, uint64_t unit, uint64_t *out)
{
    uint64_t count;
    if (!number_of(value, 1000 * 1000, &count) || count == 0) return false;
    *out = count * unit;
    return true;
}

/* From 615 on the driver accounts for cgroups' memory by itself, unless told otherwise by a later word. */
static bool driver_of(struct sim_description *out, const char *value)
{
    out->driver_major = atoi(value);
    out->accounting = out->driver_major < SIM_LIMITS_SINCE ? SIM_ACCOUNT_OFF : SIM_ACCOUNT_MISC;
    return copy_text(out->driver, sizeof out->driver, value);
}

static bool accounting_of(const char *value, enum sim_accounting *out)
{
    static const char *const names[] = {"off", "misc", "dmem"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, names[i]) != 0) continue;
        *out = (enum sim_accounting)i;
        return true;
    }
    return false;
}

static bool driver_word(struct sim_description *out, uint64_t *context, const char *key,
                        const char *value)
{
    int major, minor;
    uint64_t depth;
    if (strcmp(key, "version") == 0) {
        if (!dotted(value, &major, &minor)) return false;
        out->version = 1000 * major + 10 * minor;
        return true;
    }
    if (strcmp(key, "driver") == 0) return driver_of(out, value);
    if (strcmp(key, "memacct") == 0) return accounting_of(value, &out->accounting);
    if (strcmp(key, "limit_step_mib") == 0) return mib_of(value, &out->limit_step);
    if (strcmp(key, "context_mib") == 0) return mib_of(value, context);
    if (strcmp(key, "kernel_us") == 0) return scaled(value, 1000, &out->kernel_ns);
    if (strcmp(key, "sample_ms") == 0) return scaled(value, 1000 * 1000, &out->sample_ns);
    if (strcmp(key, "pid_shift") == 0) return number_of(value, 1 << 22, &out->pid_shift);
    if (strcmp(key, "queue_depth") == 0) {
        if (!number_of(value, 1024, &depth) || depth == 0) return false;
        out->queue_depth = (uint32_t)depth;
        return true;
    }
    return false;
}

/* Cuts the next word off *at: key="quoted value" or key=value or a bare key (value ""). */
static bool next_word(char **at, char **key, char **value)
{
    char *p = *at;
    while (*p == ' ' || *p == '\t') p++;
    *key = p;
    while (*p != '\0' && *p != '=' && *p != ' ' && *p != '\t') p++;
    if (*p == '=') {
        *p++ = '\0';
        bool quoted = *p == '"';
        if (quoted) p++;
        *value = p;
        while (*p != '\0' && (quoted ? *p != '"' : *p != ' ' && *p != '\t')) p++;
        if (quoted && *p == '\0') **key = '\0'; /* an open quote: an empty key is refused */
    } else {
        *value = p; /* points at the end of the bare word, made empty below */
    }
    if (*p != '\0') *p++ = '\0';
    *at = p;
    return (*key)[0] != '\0';
}

/* -- rows --------------------------------------------------------------------------------- */

static void default_device(struct sim_device_row *row, int index, uint64_t context)
{
    memset(row, 0, sizeof *row);
    char uuid[48];
    snprintf(uuid, sizeof uuid, "GPU-5e1a%04x-0000-4000-8000-%012x", index & 0xffff, index);
    uuid_of(uuid, row);
    snprintf(row->name, sizeof row->name, "NVIDIA A100-SXM4-80GB");
    row->memory = 81920 * SIM_MIB;
    row->context = context;
    row->sms = 108;
    row->major = 8;
    row->pci_bus = 7 + (unsigned)index;
}

static bool parse_row(struct sim_description *out, uint64_t *context, char *line)
{
    char *at = line, *kind, *key, *value;
    while (*at == ' ' || *at == '\t') at++;
    if (*at == '\0' || *at == '#') return true;
    if (!next_word(&at, &kind, &value)) return false;
    bool driver = strcmp(kind, "driver") == 0;
    if (!driver && (strcmp(kind, "device") != 0 || out->count == SIM_MAX_DEVICES)) return false;
    struct sim_device_row *row = &out->device[out->count];
    if (!driver) default_device(row, out->count++, *context);
    while (at[strspn(at, " \t")] != '\0' && at[strspn(at, " \t")] != '#') {
        if (!next_word(&at, &key, &value)) return false;
        if (driver ? !driver_word(out, context, key, value) : !device_word(row, key, value))
            return false;
    }
    return true;
}

/* Rows must not contradict themselves or each other. */
static bool is_sound(const struct sim_description *out)
{
    if (out->driver_major < SIM_LIMITS_SINCE && out->accounting != SIM_ACCOUNT_OFF) return false;
    for (int i = 0; i < out->count; i++) {
        if (out->device[i].reserved > out->device[i].memory) return false;
        for (int j = 0; j < i; j++)
            if (memcmp(out->device[i].uuid_bytes, out->device[j].uuid_bytes, 16) == 0) return false;
    }
    return out->count > 0;
}

static ssize_t slurp(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t have = 0;
    ssize_t got;
    while ((got = read(fd, text + have, room - have)) > 0) have += (size_t)got;
    close(fd);
    return got < 0 || have == room ? -1 : (ssize_t)have;
}

static uint64_t hash_of(const char *text, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325ULL; /* FNV-1a */
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    return hash;
}

static bool parse_text(struct sim_description *out, char *text)
{
    uint64_t context = 0;
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL) *end = '\0';
        if (strlen(line) >= MAX_LINE || !parse_row(out, &context, line)) return false;
        line = end == NULL ? NULL : end + 1;
    }
    return is_sound(out);
}

bool sim_describe(struct sim_description *out)
{
    static char text[MAX_FILE]; /* callers hold the initialisation lock of their library */
    memset(out, 0, sizeof *out);
    out->version = 13000;
    out->kernel_ns = 10 * 1000;
    out->sample_ns = 100 * 1000 * 1000;
    out->queue_depth = 1024;
    driver_of(out, "580.65.06");
    const char *path = getenv("TESSERA_SIM_MACHINE");
    if (path == NULL || !copy_text(out->path, sizeof out->path - 16, path)) return false;
    ssize_t length = slurp(path, text, sizeof text - 1);
    if (length < 0 || memchr(text, '\0', (size_t)length) != NULL) return false;
    text[length] = '\0';
    out->hash = hash_of(text, (size_t)length);
    if (parse_text(out, text)) return true;
    out->count = 0;
    return false;
}
