/* DESIGN
 *
 * Memory that several processes have open is charged once: to the one that allocated it, and when that one dies, to
 * exactly one of those who have it open. Memory from outside the share costs nothing unless the policy says so.
 */
#include "limiter_world.h"

static CUdeviceptr allocated(size_t bytes)
{
    CUdeviceptr pointer = 0x1234;
    OK(cuMemAlloc_v2(&pointer, bytes));
    return pointer;
}

static void refused(size_t bytes)
{
    CUdeviceptr pointer = 0x1234;
    IS(cuMemAlloc_v2(&pointer, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, 0x1234);
}

static void send_handle(int out, const CUipcMemHandle *handle)
{
    CHECK(write(out, handle, sizeof *handle) == sizeof *handle);
}

static CUipcMemHandle receive_handle(const struct child *child)
{
    CUipcMemHandle handle;
    CHECK(read(child->from, &handle, sizeof handle) == sizeof handle);
    return handle;
}

/* Exports 256 MiB; 1 frees them. */
static void exporter(int in, int out)
{
    CUipcMemHandle handle;
    world_context(0);
    CUdeviceptr pointer = allocated(256 * MIB);
    OK(cuIpcGetMemHandle(&handle, pointer + 4096)); /* an address inside will do */
    send_handle(out, &handle);
    if (hear(in) == 1) {
        OK(cuMemFree_v2(pointer));
        tell(out, 1);
        hear(in);
    }
}

/* The same by a process that the library does not see. */
static void stranger(int in, int out)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    hidden_context(0);
    OK(REAL(cuMemAlloc_v2)(&pointer, 256 * MIB));
    OK(REAL(cuIpcGetMemHandle)(&handle, pointer));
    send_handle(out, &handle);
    hear(in);
}

/* Opens what it is given; 1: allocates a byte, which makes it look for the dead; 2: closes. */
static void importer(int in, int out)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    CHECK(read(in, &handle, sizeof handle) == sizeof handle);
    world_context(0);
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    tell(out, 1);
    for (uint64_t word = hear(in); word != 0; word = hear(in)) {
        if (word == 1) {
            cuMemAlloc_v2(&(CUdeviceptr){0}, GIB);
        } else {
            OK(cuIpcCloseMemHandle(pointer));
        }
        tell(out, charged(0));
    }
}

static uint64_t ask(const struct child *child, uint64_t word)
{
    tell(child->to, word);
    return hear(child->from);
}

static void opened_memory_is_charged_to_its_exporter_alone(void)
{
    CUdeviceptr pointer;
    CUdeviceptr again;
    struct child child = child_start(exporter);
    CUipcMemHandle handle = receive_handle(&child);
    world_context(0);
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    OK(cuIpcOpenMemHandle(&again, handle, 1));
    CHECK_EQ_U64(again, pointer);
    CHECK_EQ_U64(charged(0), 256 * MIB);
    refused(44 * MIB + 1);
    CUdeviceptr own = allocated(44 * MIB);
    IS(cuMemFree_v2(pointer), REAL(cuMemFree_v2)(pointer)); /* not ours to free */
    CHECK_EQ_U64(charged(0), 300 * MIB);
    OK(cuIpcCloseMemHandle(pointer));
    OK(cuIpcCloseMemHandle(pointer));
    IS(cuIpcCloseMemHandle(pointer), REAL(cuIpcCloseMemHandle)(pointer));
    CHECK_EQ_U64(charged(0), 300 * MIB);
    OK(cuMemFree_v2(own));
    child_end(&child, 0);
}

static void memory_whose_exporter_died_is_charged_to_who_has_it_open(void)
{
    CUdeviceptr pointer;
    struct child child = child_start(exporter);
    CUipcMemHandle handle = receive_handle(&child);
    world_context(0);
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    child_end(&child, SIGKILL);
    refused(44 * MIB + 1);
    CHECK_EQ_U64(charged(0), 256 * MIB);
    CHECK_EQ_U64(taken(), 256 * MIB);
    allocated(44 * MIB);
    OK(cuIpcCloseMemHandle(pointer));
    CHECK_EQ_U64(charged(0), 44 * MIB);
    CHECK_EQ_U64(taken(), 44 * MIB);
}

static void one_of_several_pays_and_passes_it_on_when_it_closes(void)
{
    struct child source = child_start(exporter);
    struct child one = child_start(importer);
    struct child two = child_start(importer);
    CUipcMemHandle handle = receive_handle(&source);
    send_handle(one.to, &handle);
    CHECK_EQ_U64(hear(one.from), 1);
    send_handle(two.to, &handle);
    CHECK_EQ_U64(hear(two.from), 1);
    child_end(&source, SIGKILL);
    CHECK_EQ_U64(ask(&one, 1), 256 * MIB);
    CHECK_EQ_U64(ask(&two, 1), 256 * MIB);
    CHECK_EQ_U64(ask(&one, 2), 0);
    CHECK_EQ_U64(ask(&two, 1), 256 * MIB);
    CHECK_EQ_U64(ask(&two, 2), 0);
    child_end(&one, 0);
    child_end(&two, 0);
}

static void freed_memory_is_forgotten(void)
{
    struct child child = child_start(exporter);
    receive_handle(&child);
    CHECK(the_region()->usage.export[0].tag != 0);
    CHECK_EQ_U64(ask(&child, 1), 1);
    CHECK_EQ_U64(the_region()->usage.export[0].tag, 0);
    CHECK_EQ_U64(charged(0), 0);
    child_end(&child, 0);
}

static void a_full_table_keeps_what_the_living_handed_out(void)
{
    CUipcMemHandle handle;
    CUdeviceptr pointers[TESSERA_MAX_EXPORTS + 8];
    world_context(0);
    for (size_t i = 0; i < TESSERA_MAX_EXPORTS + 8; i++) {
        pointers[i] = allocated(512);
        OK(cuIpcGetMemHandle(&handle, pointers[i]));
    }
    for (size_t i = 0; i < TESSERA_MAX_EXPORTS; i++) {
        CHECK(the_region()->usage.export[i].tag != 0);
    }
    for (size_t i = 0; i < TESSERA_MAX_EXPORTS + 8; i++) {
        OK(cuMemFree_v2(pointers[i]));
    }
    for (size_t i = 0; i < TESSERA_MAX_EXPORTS; i++) {
        CHECK_EQ_U64(the_region()->usage.export[i].tag, 0);
    }
    CHECK_EQ_U64(charged(0), 0);
}

static void memory_from_outside_costs_nothing_by_default(void)
{
    CUdeviceptr pointer;
    struct child child = child_start(stranger);
    CUipcMemHandle handle = receive_handle(&child);
    world_context(0);
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    CHECK_EQ_U64(charged(0), 0);
    OK(cuIpcCloseMemHandle(pointer));
    child_end(&child, 0);
}

static void memory_from_outside_is_charged_by_policy(void)
{
    CUdeviceptr pointer = 0x1234;
    struct child child = child_start(stranger);
    CUipcMemHandle handle = receive_handle(&child);
    CHECK_EQ_U64(tessera_region_set_policy(the_region(), TESSERA_CHARGE_IMPORTS), TESSERA_ERROR_OK);
    world_context(0);
    CUdeviceptr own = allocated(45 * MIB);
    IS(cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, 0x1234);
    CHECK_EQ_U64(charged(0), 45 * MIB);
    OK(cuMemFree_v2(own));
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    CHECK_EQ_U64(charged(0), 256 * MIB);
    OK(cuIpcCloseMemHandle(pointer));
    CHECK_EQ_U64(charged(0), 0);
    child_end(&child, 0);
}

static void external_memory_is_charged_by_policy_alone(void)
{
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 1, .size = 256 * MIB};
    CUexternalMemory memory = NULL;
    world_context(0);
    OK(cuImportExternalMemory(&memory, &desc));
    CHECK_EQ_U64(charged(0), 0);
    OK(cuDestroyExternalMemory(memory));
    CHECK_EQ_U64(tessera_region_set_policy(the_region(), TESSERA_CHARGE_IMPORTS), TESSERA_ERROR_OK);
    OK(cuImportExternalMemory(&memory, &desc));
    CHECK_EQ_U64(charged(0), 256 * MIB);
    CUexternalMemory second = (CUexternalMemory)0x10;
    IS(cuImportExternalMemory(&second, &desc), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(second == (CUexternalMemory)0x10);
    OK(cuDestroyExternalMemory(memory));
    CHECK_EQ_U64(charged(0), 0);
    IS(cuImportExternalMemory(NULL, &desc), REAL(cuImportExternalMemory)(NULL, &desc));
    IS(cuImportExternalMemory(&memory, NULL), REAL(cuImportExternalMemory)(&memory, NULL));
}

static void odd_arguments_get_the_drivers_own_error(void)
{
    CUdeviceptr pointer = 0x1234;
    CUipcMemHandle handle;
    const CUipcMemHandle nonsense = {.reserved = "nonsense"};
    world_context(0);
    CUdeviceptr own = allocated(512);
    IS(cuIpcGetMemHandle(NULL, own), REAL(cuIpcGetMemHandle)(NULL, own));
    IS(cuIpcGetMemHandle(&handle, 0xdead0000), REAL(cuIpcGetMemHandle)(&handle, 0xdead0000));
    IS(cuIpcOpenMemHandle_v2(&pointer, nonsense, 1), REAL(cuIpcOpenMemHandle_v2)(&pointer, nonsense, 1));
    OK(cuIpcGetMemHandle(&handle, own));
    IS(cuIpcOpenMemHandle_v2(&pointer, handle, 1), REAL(cuIpcOpenMemHandle_v2)(&pointer, handle, 1)); /* one's own */
    IS(cuIpcOpenMemHandle_v2(NULL, handle, 1), REAL(cuIpcOpenMemHandle_v2)(NULL, handle, 1));
    CHECK_EQ_U64(pointer, 0x1234);
    CHECK_EQ_U64(charged(0), 512);
}

int main(void)
{
    CASE(opened_memory_is_charged_to_its_exporter_alone, 300 * MIB, GIB);
    CASE(memory_whose_exporter_died_is_charged_to_who_has_it_open, 300 * MIB, GIB);
    CASE(one_of_several_pays_and_passes_it_on_when_it_closes, 300 * MIB, GIB);
    CASE(freed_memory_is_forgotten, 300 * MIB, GIB);
    CASE(a_full_table_keeps_what_the_living_handed_out, 300 * MIB, GIB);
    CASE(memory_from_outside_costs_nothing_by_default, 300 * MIB, GIB);
    CASE(memory_from_outside_is_charged_by_policy, 300 * MIB, GIB);
    CASE(external_memory_is_charged_by_policy_alone, 300 * MIB, GIB);
    CASE(odd_arguments_get_the_drivers_own_error, 300 * MIB, GIB);
    return 0;
}
