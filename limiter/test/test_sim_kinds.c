/* DESIGN
 *
 * The rarer kinds of memory of the simulated driver: code, heaps, IPC between processes, multicast objects, the 32-bit
 * forms, captured and nested graph allocations. What each takes is read from the device.
 */
#include "sim_world.h"

static uint64_t used(void)
{
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

static void code_takes_what_its_image_says_and_ends_with_its_context(void)
{
    CUmodule module;
    CUlibrary library;
    CUkernel kernel;
    CUcontext context;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, "code_mib=10"));
    CHECK_EQ_U64(used(), 10 * MIB);
    OK(cuLibraryLoadData(&library, "code_mib=5", NULL, NULL, 0, NULL, NULL, 0));
    CHECK_EQ_U64(used(), 10 * MIB);
    OK(cuLibraryGetKernel(&kernel, library, "kernel"));
    OK(cuLibraryGetKernel(&kernel, library, "other"));
    CHECK_EQ_U64(used(), 15 * MIB);
    OK(cuModuleUnload(module));
    CHECK_EQ_U64(used(), 5 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 9 * MIB)); /* 1 MiB above its default */
    CHECK_EQ_U64(used(), 6 * MIB);
    OK(cuCtxDestroy_v2(context));
    CHECK_EQ_U64(used(), 0);
    OK(cuLibraryUnload(library));
}

static void graph_nodes_in_children_and_captures_take_memory_once(void)
{
    CUgraph parent, child;
    CUgraphNode node;
    CUgraphExec exec;
    CUstream stream;
    CUdeviceptr pointer;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&pointer, 4 * MIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuMemAllocAsync(&pointer, 6 * MIB, stream));
    OK(cuStreamEndCapture(stream, &child));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, child));
    OK(cuGraphInstantiateWithFlags(&exec, parent, 0));
    CHECK_EQ_U64(used(), 0);
    OK(cuGraphLaunch(exec, stream));
    CHECK_EQ_U64(used(), 6 * MIB); /* the first four are free again when the six come */
    IS(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE); /* not freed yet */
    OK(cuMemFree_v2(pointer));
    OK(cuDeviceGraphMemTrim(0));
    CHECK_EQ_U64(used(), 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(parent));
    OK(cuGraphDestroy(child));
    OK(cuStreamDestroy_v2(stream));
}

static void a_multicast_object_keeps_what_is_bound(void)
{
    const CUmulticastObjectProp object_prop = {.numDevices = 1, .size = 8 * MIB};
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle object, one, two;
    OK(cuMulticastCreate(&object, &object_prop));
    OK(cuMemCreate(&one, 2 * MIB, &prop, 0));
    OK(cuMemCreate(&two, 2 * MIB, &prop, 0));
    OK(cuMulticastBindMem(object, 0, one, 0, 2 * MIB, 0));
    OK(cuMulticastBindMem(object, 2 * MIB, two, 0, 2 * MIB, 0));
    IS(cuMulticastBindMem(object, 8 * MIB, two, 0, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(one));
    OK(cuMemRelease(two));
    CHECK_EQ_U64(used(), 4 * MIB);
    OK(cuMulticastUnbind(object, 0, 0, 2 * MIB));
    CHECK_EQ_U64(used(), 2 * MIB);
    OK(cuMemRelease(object));
    CHECK_EQ_U64(used(), 0);
    IS(cuMemRelease(object), CUDA_ERROR_INVALID_VALUE);
}

static void the_oldest_forms_take_real_memory(void)
{
    CUdeviceptr_v1 pointer;
    unsigned int pitch;
    OK(cuMemAlloc(&pointer, 1000));
    CHECK_EQ_U64(used(), 1024);
    OK(cuMemFree(pointer));
    OK(cuMemAllocPitch(&pointer, &pitch, 100, 3, 4));
    CHECK_EQ_U64(pitch, 512);
    CHECK_EQ_U64(used(), 1536);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(used(), 0);
}

static void exporter(int in, int out)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, 64 * MIB));
    OK(cuIpcGetMemHandle(&handle, pointer));
    IS(cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_ERROR_INVALID_CONTEXT); /* its own */
    CHECK(write(out, &handle, sizeof handle) == sizeof handle);
    hear(in);
}

static void opened_memory_outlives_its_exporter(struct child *child)
{
    CUipcMemHandle handle;
    CUdeviceptr pointer, again;
    CHECK(read(child->from, &handle, sizeof handle) == sizeof handle);
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    OK(cuIpcOpenMemHandle_v2(&again, handle, 1));
    CHECK_EQ_U64(again, pointer);
    CHECK_EQ_U64(used(), 64 * MIB);
    child_end(child, SIGKILL);
    OK(cuIpcCloseMemHandle(pointer));
    CHECK_EQ_U64(used(), 64 * MIB);
    OK(cuIpcCloseMemHandle(pointer));
    CHECK_EQ_U64(used(), 0);
    IS(cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
    world_write("device memory_mib=1024\n");
    struct child child = child_start(exporter);
    world_context(0);
    CUcontext context;
    opened_memory_outlives_its_exporter(&child);
    OK(cuCtxGetCurrent(&context));
    code_takes_what_its_image_says_and_ends_with_its_context();
    OK(cuCtxSetCurrent(context));
    graph_nodes_in_children_and_captures_take_memory_once();
    a_multicast_object_keeps_what_is_bound();
    the_oldest_forms_take_real_memory();
    return 0;
}
