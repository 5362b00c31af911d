/* DESIGN
 *
 * The description file, visible devices, and identity as both libraries tell it. Each case runs
 * in a child, because a process initialises once.
 */
#include "sim_world.h"

#define FIRST "device uuid=GPU-aaaa0000-0000-4000-8000-000000000001 memory_mib=100 pci=0000:07:00.0\n"
#define SECOND "device uuid=GPU-aaaa1111-0000-4000-8000-000000000002 memory_mib=200 pci=0001:1f:00.0\n"
#define THIRD "device uuid=GPU-bbbb0000-0000-4000-8000-000000000003 memory_mib=300 numa=1 sms=20 cc=7.5\n"

/* Runs the case in a child of its own; a failed CHECK ends only that child. */
static void in_child(void (*body)(const void *with), const void *with)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        body(with);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ_U64(status, 0);
}

/* -- malformed files ------------------------------------------------------------------------ */

static void is_refused(const void *text)
{
    int count;
    (void)text;
    IS(cuInit(0), CUDA_ERROR_NO_DEVICE);
    IS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
}

static void malformed_descriptions_are_no_machine(void)
{
    static const char *const texts[] = {
        "",
        "# nothing but a comment\n",
        "driver version=13.0\n",
        "gpu memory_mib=1\n",
        "device memory_mib=\n",
        "device memory_mib=x\n",
        "device memory_mib=-1\n",
        "device memory_mib=0\n",
        "device memory_mib=99999999999999999999\n",
        "device memory_mib=1 reserved_mib=2\n",
        "device colour=green\n",
        "device name=\"open\n",
        "device name=\n",
        "device uuid=GPU-123\n",
        "device uuid=MIG-aaaa0000-0000-4000-8000-000000000001\n",
        "device uuid=GPU-aaaa0000-0000-4000-8000-00000000000g\n",
        "device cc=8\n",
        "device pci=7\n",
        "driver version=thirteen\ndevice\n",
        "driver queue_depth=0\ndevice\n",
        FIRST FIRST,
        "device\ndevice\ndevice\ndevice\ndevice\ndevice\ndevice\ndevice\ndevice\ndevice\ndevice\ndevice\n"
        "device\ndevice\ndevice\ndevice\ndevice\n", /* seventeen */
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        world_write(texts[i]);
        in_child(is_refused, texts[i]);
    }
    CHECK(setenv("TESSERA_SIM_MACHINE", "/nonexistent/machine", 1) == 0);
    in_child(is_refused, NULL);
    CHECK(unsetenv("TESSERA_SIM_MACHINE") == 0); /* simulation is never silent */
    in_child(is_refused, NULL);
    CHECK(setenv("TESSERA_SIM_MACHINE", world_path, 1) == 0);
}

static void is_refused_binary(const void *with)
{
    FILE *file = fopen(world_path, "a");
    CHECK(file != NULL && fputc(0, file) == 0 && fclose(file) == 0);
    is_refused(with);
}

static void a_file_with_a_zero_byte_is_refused(void)
{
    world_write(FIRST);
    in_child(is_refused_binary, NULL);
}

/* -- visible devices ------------------------------------------------------------------------ */

struct choice {
    const char *list;
    const char *mib; /* memory of the visible devices, in order; "" for none */
};

static void sees(const void *with)
{
    const struct choice *choice = with;
    char seen[64] = "";
    int count;
    if (choice->list != NULL) CHECK(setenv("CUDA_VISIBLE_DEVICES", choice->list, 1) == 0);
    if (choice->mib[0] == '\0') {
        IS(cuInit(0), CUDA_ERROR_NO_DEVICE);
        return;
    }
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        size_t bytes, length = strlen(seen);
        OK(cuDeviceTotalMem_v2(&bytes, i));
        snprintf(seen + length, sizeof seen - length, "%s%llu", i == 0 ? "" : " ", bytes / MIB);
    }
    CHECK_EQ_STR(seen, choice->mib);
    unsigned all;
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetCount_v2(&all), NVML_SUCCESS);
    CHECK_EQ_U64(all, 3); /* NVML does not know the variable */
}

static void the_list_chooses_and_orders_devices(void)
{
    static const struct choice choices[] = {
        {NULL, "100 200 300"},
        {"1", "200"},
        {"2,0", "300 100"},
        {"GPU-bbbb", "300"},
        {"GPU-aaaa1111-0000-4000-8000-000000000002,GPU-bbbb", "200 300"},
        {"GPU-aaaa", ""},      /* two have it: ambiguous */
        {"0,GPU-aaaa,1", "100"}, /* the list ends at the first bad entry */
        {"0,7,1", "100"},
        {"-1", ""},
        {"", ""},
        {"0,0", ""},
        {"x", ""},
        {"MIG-aaaa", ""},
    };
    world_write(FIRST SECOND THIRD);
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) in_child(sees, &choices[i]);
}

/* -- identity ------------------------------------------------------------------------------- */

static void both_libraries_tell_the_same(const void *with)
{
    nvmlDevice_t device;
    nvmlPciInfo_t pci;
    CUuuid uuid;
    char name[96], id[32], text[96];
    int value;
    (void)with;
    CHECK(setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa1111", 1) == 0);
    OK(cuInit(0));
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByUUID("GPU-aaaa1111-0000-4000-8000-000000000002", &device), NVML_SUCCESS);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    CHECK_EQ_U64((unsigned char)uuid.bytes[0], 0xaa);
    CHECK_EQ_U64((unsigned char)uuid.bytes[2], 0x11);
    CHECK_EQ_U64((unsigned char)uuid.bytes[15], 0x02);
    OK(cuDeviceGetPCIBusId(id, sizeof id, 0));
    CHECK_EQ_STR(id, "0001:1f:00.0");
    CHECK_EQ_U64(nvmlDeviceGetPciInfo_v3(device, &pci), NVML_SUCCESS);
    CHECK_EQ_STR(pci.busId, "00000001:1f:00.0");
    CHECK_EQ_U64(pci.bus, 0x1f);
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK_EQ_U64(nvmlDeviceGetName(device, text, sizeof text), NVML_SUCCESS);
    CHECK_EQ_STR(name, text);
    CHECK_EQ_U64(nvmlDeviceGetName(device, text, 5), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ_U64(nvmlDeviceGetHandleByPciBusId_v2("00000001:1F:00.0", &device), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByUUID("GPU-cccc", &device), NVML_ERROR_NOT_FOUND);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK_EQ_U64(value, 108);
    IS(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1), CUDA_ERROR_INVALID_DEVICE);
}

static void the_described_card_is_the_card(const void *with)
{
    nvmlDevice_t device;
    int major, minor;
    unsigned long nodes[2];
    (void)with;
    CHECK_EQ_U64(nvmlInitWithFlags(0), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(2, &device), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(3, &device), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(nvmlDeviceGetCudaComputeCapability(device, &major, &minor), NVML_SUCCESS);
    CHECK_EQ_U64(major * 10 + minor, 75);
    CHECK_EQ_U64(nvmlDeviceGetMemoryAffinity(device, 2, nodes, 0), NVML_SUCCESS);
    CHECK_EQ_U64(nodes[0], 2);
    unsigned current, pending;
    CHECK_EQ_U64(nvmlDeviceGetMigMode(device, &current, &pending), NVML_ERROR_NOT_SUPPORTED);
    nvmlMemory_v2_t memory = {.version = 1};
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo_v2(NULL, &memory), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(nvmlShutdown(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_ERROR_UNINITIALIZED);
}

/* -- context and driver bytes ---------------------------------------------------------------- */

static void overhead_is_charged_once_per_process_and_device(const void *with)
{
    CUcontext extra;
    nvmlDevice_t device;
    nvmlMemory_t memory;
    (void)with;
    world_context(0);
    CHECK_EQ_U64(world_free(), (1000 - 50 - 30) * MIB);
    OK(cuCtxCreate_v2(&extra, 0, 0));
    CHECK_EQ_U64(world_free(), (1000 - 50 - 30) * MIB);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_EQ_U64(world_free(), (1000 - 50 - 30) * MIB);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    OK(cuCtxDestroy_v2(extra));
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.used, 50 * MIB); /* version 1 counts the reserved part as used */
    CHECK_EQ_U64(memory.total, 1000 * MIB);
}

static void a_card_too_small_for_a_context_refuses_it(const void *with)
{
    CUcontext context;
    (void)with;
    OK(cuInit(0));
    IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

/* -- one state file, one machine -------------------------------------------------------------- */

static void has_two_hundred(const void *with)
{
    (void)with;
    world_context(0);
    CHECK_EQ_U64(world_free(), 200 * MIB);
}

static void a_changed_description_is_a_new_machine_when_nobody_uses_the_old(void)
{
    struct child old;
    int down[2], up[2];
    world_write("device memory_mib=100\n");
    CHECK(pipe(down) == 0 && pipe(up) == 0);
    fflush(NULL);
    old.pid = fork();
    if (old.pid == 0) {
        world_context(0);
        tell(up[1], 1);
        hear(down[0]);
        _exit(0);
    }
    old.to = down[1];
    old.from = up[0];
    hear(old.from);
    world_write("device memory_mib=200\n");
    in_child(is_refused, NULL); /* the old machine is in use */
    child_end(&old, 0);
    in_child(has_two_hundred, NULL);
}

int main(void)
{
    malformed_descriptions_are_no_machine();
    a_file_with_a_zero_byte_is_refused();
    the_list_chooses_and_orders_devices();
    in_child(both_libraries_tell_the_same, NULL);
    in_child(the_described_card_is_the_card, NULL);
    world_write("driver context_mib=30 # folded\n# a comment\n\n  device memory_mib=1000 reserved_mib=50\n");
    in_child(overhead_is_charged_once_per_process_and_device, NULL);
    world_write("device memory_mib=10 context_mib=30\n");
    in_child(a_card_too_small_for_a_context_refuses_it, NULL);
    a_changed_description_is_a_new_machine_when_nobody_uses_the_old();
    return 0;
}
