/* DESIGN
 *
 * Copies and sets. They take no device time and move bytes only between addresses that the host
 * can touch; device addresses must lie inside an allocation. Synchronous forms wait for all work
 * of the context's device first. Two- and three-dimensional forms are accepted unread.
 */
#include "sim.h"

#include <string.h>

static bool is_good(CUdeviceptr address, uint64_t bytes)
{
    return !sim_is_device_address(address) || bytes == 0 || sim_is_memory(address, bytes);
}

static CUresult move(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    sim_lock();
    bool good = is_good(to, bytes) && is_good(from, bytes);
    sim_unlock();
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    if (bytes != 0 && !sim_is_device_address(to) && !sim_is_device_address(from))
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_now(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    sim_drain(context);
    return move(to, from, bytes);
}

static CUresult copy_in(CUstream handle, CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    return result == CUDA_SUCCESS ? move(to, from, bytes) : result;
}

/* The address of host memory as a driver address, and a driver address as itself. */
#define HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

#define COPY(name, to_type, from_type, to, from)                                                       \
    static CUresult do_##name(to_type dst, from_type src, size_t bytes)                                \
    {                                                                                                  \
        return copy_now(to, from, bytes);                                                              \
    }                                                                                                  \
    SIM_TWINS(name, name##_ptds, (to_type dst, from_type src, size_t bytes), (dst, src, bytes),        \
              "%llx %llx %zu", to, from, bytes)

#define COPY_ASYNC(name, to_type, from_type, to, from)                                                 \
    static CUresult do_##name(to_type dst, from_type src, size_t bytes, CUstream stream)               \
    {                                                                                                  \
        return copy_in(stream, to, from, bytes);                                                       \
    }                                                                                                  \
    SIM_TWINS(name, name##_ptsz, (to_type dst, from_type src, size_t bytes, CUstream stream),          \
              (dst, src, bytes, stream), "%llx %llx %zu %p", to, from, bytes, (void *)stream)

COPY(cuMemcpy, CUdeviceptr, CUdeviceptr, dst, src)
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *, dst, HOST(src))
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr, HOST(dst), src)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, dst, src)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, dst, src)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, dst, HOST(src))
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, HOST(dst), src)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, dst, src)

static CUresult do_cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes)
{
    (void)to;
    (void)from;
    return copy_now(dst, src, bytes);
}

SIM_TWINS(cuMemcpyPeer, cuMemcpyPeer_ptds,
          (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes),
          (dst, to, src, from, bytes), "%llx %llx %zu", dst, src, bytes)

static CUresult do_cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
                                     size_t bytes, CUstream stream)
{
    (void)to;
    (void)from;
    return copy_in(stream, dst, src, bytes);
}

SIM_TWINS(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
          (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes, CUstream stream),
          (dst, to, src, from, bytes, stream), "%llx %llx %zu %p", dst, src, bytes, (void *)stream)

/* -- two and three dimensions ------------------------------------------------------------- */

static CUresult accept_now(const void *copy)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    sim_drain(context);
    return CUDA_SUCCESS;
}

static CUresult accept_in(const void *copy, CUstream handle)
{
    CUstream stream;
    return copy == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_of(handle, &stream);
}

#define SHAPED(name, type)                                                             \
    static CUresult do_##name(const type *copy) { return accept_now(copy); }           \
    SIM_TWINS(name, name##_ptds, (const type *copy), (copy), "%p", (const void *)copy)
#define SHAPED_ASYNC(name, type)                                                                       \
    static CUresult do_##name(const type *copy, CUstream stream) { return accept_in(copy, stream); }   \
    SIM_TWINS(name, name##_ptsz, (const type *copy, CUstream stream), (copy, stream), "%p %p",         \
              (const void *)copy, (void *)stream)

SHAPED(cuMemcpy2D_v2, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D)
SHAPED(cuMemcpy3D_v2, CUDA_MEMCPY3D)
SHAPED_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D)
SHAPED_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D)

/* -- sets --------------------------------------------------------------------------------- */

static CUresult fill(CUdeviceptr to, const void *pattern, size_t width, uint64_t count)
{
    sim_lock();
    bool good = count == 0 || sim_is_memory(to, count * width);
    sim_unlock();
    if (!good || to % width != 0) return CUDA_ERROR_INVALID_VALUE;
    if (sim_is_device_address(to)) return CUDA_SUCCESS;
    for (uint64_t i = 0; i < count; i++) memcpy((char *)(uintptr_t)to + i * width, pattern, width);
    return CUDA_SUCCESS;
}

static CUresult fill_now(CUdeviceptr to, const void *pattern, size_t width, uint64_t count)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    return result == CUDA_SUCCESS ? fill(to, pattern, width, count) : result;
}

static CUresult fill_in(CUstream handle, CUdeviceptr to, const void *pattern, size_t width, uint64_t count)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    return result == CUDA_SUCCESS ? fill(to, pattern, width, count) : result;
}

#define SET(bits, type)                                                                              \
    static CUresult do_cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t count)               \
    {                                                                                                \
        return fill_now(dst, &value, sizeof value, count);                                           \
    }                                                                                                \
    SIM_TWINS(cuMemsetD##bits##_v2, cuMemsetD##bits##_v2_ptds, (CUdeviceptr dst, type value, size_t count), \
              (dst, value, count), "%llx %zu", dst, count)                                           \
    static CUresult do_cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t count, CUstream stream) \
    {                                                                                                \
        return fill_in(stream, dst, &value, sizeof value, count);                                    \
    }                                                                                                \
    SIM_TWINS(cuMemsetD##bits##Async, cuMemsetD##bits##Async_ptsz,                                   \
              (CUdeviceptr dst, type value, size_t count, CUstream stream), (dst, value, count, stream), \
              "%llx %zu %p", dst, count, (void *)stream)

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned int)

static CUresult fill_rows(CUdeviceptr to, size_t pitch, const void *pattern, size_t width, size_t columns,
                          size_t rows)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t row = 0; row < rows && result == CUDA_SUCCESS; row++)
        result = fill(to + row * pitch, pattern, width, columns);
    return result;
}

#define SET_ROWS(bits, type)                                                                          \
    static CUresult do_cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t columns, size_t rows) \
    {                                                                                                 \
        CUcontext context;                                                                            \
        CUresult result = sim_current(&context);                                                      \
        return result == CUDA_SUCCESS ? fill_rows(dst, pitch, &value, sizeof value, columns, rows) : result; \
    }                                                                                                 \
    SIM_TWINS(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits##_v2_ptds,                                    \
              (CUdeviceptr dst, size_t pitch, type value, size_t columns, size_t rows),               \
              (dst, pitch, value, columns, rows), "%llx %zu %zu", dst, columns, rows)                 \
    static CUresult do_cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t columns, \
                                                size_t rows, CUstream handle)                         \
    {                                                                                                 \
        CUstream stream;                                                                              \
        CUresult result = sim_stream_of(handle, &stream);                                             \
        return result == CUDA_SUCCESS ? fill_rows(dst, pitch, &value, sizeof value, columns, rows) : result; \
    }                                                                                                 \
    SIM_TWINS(cuMemsetD2D##bits##Async, cuMemsetD2D##bits##Async_ptsz,                                \
              (CUdeviceptr dst, size_t pitch, type value, size_t columns, size_t rows, CUstream stream), \
              (dst, pitch, value, columns, rows, stream), "%llx %zu %zu", dst, columns, rows)

SET_ROWS(8, unsigned char)
SET_ROWS(16, unsigned short)
SET_ROWS(32, unsigned int)
