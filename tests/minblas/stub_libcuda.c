/* A libcuda.so.1 without a GPU: every call returns at once, and what reaches cuLaunchKernelEx and cuTensorMapEncodeTiled is kept.
 *
 * Triton's own driver module and launchers link against it, so that the launch path runs, and can be compared and timed, anywhere.
 */
#include <stdint.h>
#include <string.h>
#include "cuda.h"

enum { MOST_PARAMETERS = 64, MOST_BYTES = 4096, MOST_LAUNCHES = 64, MOST_FUNCTIONS = 256 };

typedef struct {
  uint32_t grid[3], block[3], shared, attribute_count;
  uint64_t stream, function;
  uint32_t attribute_ids[4];
  uint64_t attribute_values[4];
  uint32_t bytes;
  unsigned char parameters[MOST_BYTES];
} Launch;

typedef struct {
  uint32_t count;
  uint32_t sizes[MOST_PARAMETERS];
} Layout;

Launch stub_launches[MOST_LAUNCHES]; /* a ring: launch i lies at i % MOST_LAUNCHES */
uint64_t stub_launch_count, stub_encode_count, stub_context = 1, stub_device;
int stub_fail_launch, stub_recording = 1;
static Layout layouts[MOST_FUNCTIONS];
static uint64_t functions;

void stub_set_layout(uint64_t function, uint32_t count, const uint32_t *sizes) {
  layouts[function].count = count;
  memcpy(layouts[function].sizes, sizes, count * sizeof(uint32_t));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
  if (stub_fail_launch) return (CUresult)stub_fail_launch;
  Launch *launch = &stub_launches[stub_launch_count++ % MOST_LAUNCHES];
  if (!stub_recording) return CUDA_SUCCESS;
  memset(launch, 0, sizeof(Launch));
  launch->grid[0] = config->gridDimX, launch->grid[1] = config->gridDimY, launch->grid[2] = config->gridDimZ;
  launch->block[0] = config->blockDimX, launch->block[1] = config->blockDimY, launch->block[2] = config->blockDimZ;
  launch->shared = config->sharedMemBytes;
  launch->stream = (uint64_t)config->hStream;
  launch->function = (uint64_t)f;
  launch->attribute_count = config->numAttrs;
  for (unsigned i = 0; i < config->numAttrs && i < 4; i++) {
    launch->attribute_ids[i] = config->attrs[i].id;
    memcpy(&launch->attribute_values[i], &config->attrs[i].value, 8);
  }
  const Layout *layout = &layouts[(uint64_t)f % MOST_FUNCTIONS];
  for (uint32_t i = 0; i < layout->count; i++) {
    memcpy(launch->parameters + launch->bytes, parameters[i], layout->sizes[i]);
    launch->bytes += layout->sizes[i];
  }
  return CUDA_SUCCESS;
}

/* The map holds, in plain words, what it was made from. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *shape,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  stub_encode_count++;
  uint32_t *words = (uint32_t *)map;
  memset(map, 0, sizeof(CUtensorMap));
  memcpy(words, &address, 8);
  words[2] = type | rank << 8 | swizzle << 16 | fill << 24;
  words[3] = interleave | promotion << 8;
  for (unsigned i = 0; i < rank; i++) {
    words[4 + i] = (uint32_t)shape[i];
    words[9 + i] = box[i];
    words[14 + i] = element_strides[i];
    if (i + 1 < rank) memcpy(words + 20 + 2 * i, &strides[i], 8);
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
  const Layout *layout = &layouts[(uint64_t)f % MOST_FUNCTIONS];
  if (index >= layout->count) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0; /* nobody here asks for it */
  *size = layout->sizes[index];
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = (CUmodule)(functions + 1); return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name) {
  *f = (CUfunction)(++functions % MOST_FUNCTIONS);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132 : 232448;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)stub_context; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { stub_context = (uint64_t)context; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)(uint64_t)(device + 1); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  memcpy(data, &pointer, 8);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) { *text = "the stub was told to fail"; return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) { *clusters = 1; return CUDA_SUCCESS; }
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *shape,
                                 const cuuint64_t *strides, const int *low, const int *high, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
