/* DESIGN
 *
 * Arrays and mipmapped arrays. The real size formula is secret, and so is this one in spirit: a
 * row is padded to 128 B, rows to a multiple of 8, the whole to 64 KiB, so that whoever guesses
 * width * height * channels is wrong. Deferred arrays tell their size and take nothing; sparse
 * ones take nothing until mapped, which is not modelled.
 *
 * Level arrays of a mipmapped array are views: they hold nothing of their own.
 *
 * Source: CUDA driver API, Memory Management (arrays); requirements only for deferred mapping.
 */
#include "sim.h"

#include <stdlib.h>

enum { ROW = 128, ROWS = 8, WHOLE = 65536, MOST_LEVELS = 32 };

struct CUarray_st { /* also what a CUmipmappedArray points to */
    uint32_t magic;
    uint32_t charge;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    unsigned levels; /* 0: a plain array */
    bool view;       /* a level of a mipmapped array */
    uint64_t bytes;
    struct CUarray_st *next;
};

static struct CUarray_st *arrays; /* all ever made; dead ones answer INVALID_HANDLE */

static bool is_array(const struct CUarray_st *array)
{
    return array != NULL && array->magic == SIM_ARRAY_MAGIC;
}

/* -- size --------------------------------------------------------------------------------- */

static uint64_t padded(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* Bytes of one channel, 0 for a format that is not modelled. */
static unsigned channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static uint64_t at_least_one(uint64_t value)
{
    return value == 0 ? 1 : value;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    uint64_t width = at_least_one(d->Width >> level), height = at_least_one(d->Height >> level);
    uint64_t layers = at_least_one(d->Flags & CUDA_ARRAY3D_LAYERED ? d->Depth : d->Depth >> level);
    uint64_t row = padded(width * channel_bytes(d->Format) * d->NumChannels, ROW);
    return row * (d->Height == 0 ? 1 : padded(height, ROWS)) * layers;
}

static uint64_t all_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    uint64_t bytes = 0;
    for (unsigned level = 0; level < at_least_one(levels); level++) bytes += level_bytes(d, level);
    return padded(bytes, WHOLE);
}

static bool is_sound(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    static const uint64_t most = 1 << 20;
    bool channels = d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4;
    return d->Width != 0 && d->Width <= most && d->Height <= most && d->Depth <= 16384 && channels &&
           channel_bytes(d->Format) != 0 && levels <= MOST_LEVELS;
}

/* -- create and destroy ------------------------------------------------------------------- */

/* Called with the lock held. */
static struct CUarray_st *object(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    struct CUarray_st *array = calloc(1, sizeof *array);
    if (array == NULL) return NULL;
    array->magic = SIM_ARRAY_MAGIC;
    array->context = context;
    array->descriptor = *d;
    array->levels = levels;
    array->bytes = all_bytes(d, levels);
    array->next = arrays;
    arrays = array;
    return array;
}

static CUresult create(struct CUarray_st **out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!is_sound(d, levels)) return CUDA_ERROR_INVALID_VALUE;
    uint32_t charge = 0;
    bool backed = (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
    sim_lock();
    if (backed) charge = sim_take(context->row, all_bytes(d, levels), SIM_ARRAY);
    struct CUarray_st *array = backed && charge == 0 ? NULL : object(context, d, levels);
    if (array == NULL && charge != 0) sim_give(charge);
    if (array != NULL) array->charge = charge;
    sim_unlock();
    if (array == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = array;
    return CUDA_SUCCESS;
}

/* Called with the lock held. */
static void release(struct CUarray_st *array)
{
    if (array->charge != 0) sim_give(array->charge);
    array->charge = 0;
    array->magic = SIM_DEAD;
}

void sim_arrays_of_context_free(CUcontext context)
{
    for (struct CUarray_st *array = arrays; array != NULL; array = array->next)
        if (array->context == context && is_array(array)) release(array);
}

void sim_arrays_forget(void)
{
    for (struct CUarray_st *array = arrays; array != NULL; array = array->next) {
        array->charge = 0; /* the parent's */
        array->magic = SIM_DEAD;
    }
}

static CUresult destroy(struct CUarray_st *array, bool mipmapped)
{
    if (!is_array(array) || (array->levels != 0) != mipmapped) return CUDA_ERROR_INVALID_HANDLE;
    sim_lock();
    release(array);
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_API cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
    SIM_CALL("%zu %zu", d == NULL ? 0 : d->Width, d == NULL ? 0 : d->Height);
    if (out == NULL || d == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return create(out, &full, 0);
}

SIM_API cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    SIM_CALL("%zu %zu", d == NULL ? 0 : d->Width, d == NULL ? 0 : d->Height);
    return out == NULL || d == NULL ? CUDA_ERROR_INVALID_VALUE : create(out, d, 0);
}

SIM_API cuArrayDestroy(CUarray array)
{
    SIM_CALL("%p", (void *)array);
    return destroy(array, false);
}

SIM_API cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    SIM_CALL("%zu %zu %u", d == NULL ? 0 : d->Width, d == NULL ? 0 : d->Height, levels);
    if (out == NULL || d == NULL || levels == 0) return CUDA_ERROR_INVALID_VALUE;
    return create((struct CUarray_st **)out, d, levels);
}

SIM_API cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    SIM_CALL("%p", (void *)array);
    return destroy((struct CUarray_st *)array, true);
}

SIM_API cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmapped, unsigned int level)
{
    SIM_CALL("%p %u", (void *)mipmapped, level);
    struct CUarray_st *whole = (struct CUarray_st *)mipmapped;
    if (!is_array(whole) || whole->levels == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (out == NULL || level >= whole->levels) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    struct CUarray_st *view = object(whole->context, &whole->descriptor, 0);
    if (view != NULL) view->view = true;
    sim_unlock();
    if (view != NULL) *out = view;
    return view == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* -- questions ---------------------------------------------------------------------------- */

SIM_API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray array)
{
    SIM_CALL("%p", (void *)array);
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR *d = &array->descriptor;
    *out = (CUDA_ARRAY_DESCRIPTOR){d->Width, d->Height, d->Format, d->NumChannels};
    return CUDA_SUCCESS;
}

SIM_API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray array)
{
    SIM_CALL("%p", (void *)array);
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    *out = array->descriptor;
    return CUDA_SUCCESS;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const struct CUarray_st *array, CUdevice device)
{
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (out == NULL || (array->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->bytes, .alignment = WHOLE};
    return CUDA_SUCCESS;
}

SIM_API cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device)
{
    SIM_CALL("%p %d", (void *)array, device);
    return requirements(out, array, device);
}

SIM_API cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array,
                                              CUdevice device)
{
    SIM_CALL("%p %d", (void *)array, device);
    return requirements(out, (struct CUarray_st *)array, device);
}
