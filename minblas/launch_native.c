/* One launch of a compiled kernel, from C: the parameters lie ready in a buffer with gaps for what is read at every call.
 *
 * Built at first use as triton builds its own launcher; see launch_native.py, which makes the buffer and is the only caller.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda.h"

enum { MOST_BYTES = 4096, MOST_PARAMETERS = 256, ALIGNMENT = 128, MAP_BYTES = sizeof(CUtensorMap) };

typedef enum { ADDRESS = 0, FLOAT = 1, DOUBLE = 2, MAP = 3, KINDS } Kind;

typedef struct {
  uint32_t offset; /* into the buffer */
  uint32_t place;  /* among the values */
  Kind kind;
  uint64_t shift; /* ADDRESS: bytes to add */
  PyObject *kept; /* MAP: encoded maps by address */
} Gap;

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  CUfunction function;
  int device;
  uint32_t grid[3], threads, shared;
  bool cooperative, dependent;
  uint32_t value_count; /* the last value is the stream */
  uint32_t byte_count, parameter_count, gap_count;
  uint32_t offsets[MOST_PARAMETERS];
  Gap gaps[MOST_PARAMETERS];
  unsigned char buffer[MOST_BYTES];
} Launch;

static CUresult (*launch_kernel)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUresult (*get_context)(CUcontext *);
static CUresult (*set_context)(CUcontext);
static CUresult (*get_device)(CUdevice *, int);
static CUresult (*retain_context)(CUcontext *, CUdevice);
static CUresult (*error_string)(CUresult, const char **);
static CUresult (*parameter_info)(CUfunction, size_t, size_t *, size_t *);

/* A thread that has done nothing on a GPU yet has no context: it gets the device's own. */
static CUresult ensure_context(int index) {
  CUcontext context = NULL;
  CUresult result = get_context(&context);
  if (result != CUDA_SUCCESS || context != NULL) return result;
  CUdevice device;
  if ((result = get_device(&device, index)) != CUDA_SUCCESS) return result;
  if ((result = retain_context(&context, device)) != CUDA_SUCCESS) return result;
  return set_context(context);
}

static bool fill(const Gap *gap, PyObject *value, unsigned char *buffer) {
  unsigned char *to = buffer + gap->offset;
  if (gap->kind == ADDRESS) {
    uint64_t address = PyLong_AsUnsignedLongLong(value);
    if (address == (uint64_t)-1 && PyErr_Occurred()) return false;
    address += gap->shift;
    memcpy(to, &address, sizeof(address));
  } else if (gap->kind == MAP) {
    PyObject *map = PyObject_GetItem(gap->kept, value);
    if (map == NULL) return false;
    bool fits = PyBytes_Check(map) && PyBytes_GET_SIZE(map) == MAP_BYTES;
    if (fits) memcpy(to, PyBytes_AS_STRING(map), MAP_BYTES);
    else PyErr_SetString(PyExc_TypeError, "an encoded tensor map is 128 bytes");
    Py_DECREF(map);
    return fits;
  } else {
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) return false;
    float narrow = (float)number;
    if (gap->kind == FLOAT) memcpy(to, &narrow, sizeof(narrow));
    else memcpy(to, &number, sizeof(number));
  }
  return true;
}

static PyObject *call_launch(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names) {
  Launch *launch = (Launch *)self;
  if (PyVectorcall_NARGS(flags) != 1 || names != NULL || !PyTuple_CheckExact(arguments[0]) ||
      PyTuple_GET_SIZE(arguments[0]) != launch->value_count) {
    return PyErr_Format(PyExc_TypeError, "a launch takes one tuple of %u values", launch->value_count);
  }
  PyObject *values = arguments[0];
  _Alignas(ALIGNMENT) unsigned char buffer[MOST_BYTES];
  void *parameters[MOST_PARAMETERS];
  memcpy(buffer, launch->buffer, launch->byte_count);
  for (uint32_t i = 0; i < launch->gap_count; i++) {
    if (!fill(&launch->gaps[i], PyTuple_GET_ITEM(values, launch->gaps[i].place), buffer)) return NULL;
  }
  uint64_t stream = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(values, launch->value_count - 1));
  if (stream == (uint64_t)-1 && PyErr_Occurred()) return NULL;
  for (uint32_t i = 0; i < launch->parameter_count; i++) parameters[i] = buffer + launch->offsets[i];

  CUlaunchAttribute attributes[2];
  CUlaunchConfig config = {
      .gridDimX = launch->grid[0], .gridDimY = launch->grid[1], .gridDimZ = launch->grid[2],
      .blockDimX = launch->threads, .blockDimY = 1, .blockDimZ = 1,
      .sharedMemBytes = launch->shared, .hStream = (CUstream)stream, .attrs = attributes, .numAttrs = 0,
  };
  if (launch->dependent) {
    memset(&attributes[config.numAttrs], 0, sizeof(CUlaunchAttribute));
    attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (launch->cooperative) {
    memset(&attributes[config.numAttrs], 0, sizeof(CUlaunchAttribute));
    attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[config.numAttrs++].value.cooperative = 1;
  }
  CUresult result;
  Py_BEGIN_ALLOW_THREADS; /* a full queue makes the driver wait */
  result = ensure_context(launch->device);
  if (result == CUDA_SUCCESS) result = launch_kernel(&config, launch->function, parameters, NULL);
  Py_END_ALLOW_THREADS;
  if (result != CUDA_SUCCESS) {
    const char *text = NULL;
    error_string(result, &text);
    return PyErr_Format(PyExc_RuntimeError, "CUDA error at a launch: %s", text ? text : "unknown");
  }
  Py_RETURN_NONE;
}

/* Where parameters lie, and that the loaded kernel has as many of the same sizes: the driver reads as many as that, whatever is there. */
static bool take_parameters(Launch *self, PyObject *parameters) {
  self->parameter_count = (uint32_t)PyTuple_GET_SIZE(parameters);
  size_t at, bytes;
  for (uint32_t i = 0; i < self->parameter_count; i++) {
    unsigned offset, size;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, i), "II", &offset, &size)) return false;
    if (offset > self->byte_count || size > self->byte_count - offset) {
      return PyErr_SetString(PyExc_ValueError, "a parameter lies outside the buffer"), false;
    }
    if (parameter_info(self->function, i, &at, &bytes) != CUDA_SUCCESS || bytes != size) {
      return PyErr_Format(PyExc_LookupError, "parameter %u has %u bytes here and others in the kernel", i, size), false;
    }
    self->offsets[i] = offset;
  }
  if (parameter_info(self->function, self->parameter_count, &at, &bytes) == CUDA_SUCCESS) {
    return PyErr_Format(PyExc_LookupError, "the kernel has more than %u parameters", self->parameter_count), false;
  }
  return true;
}

static bool take_gaps(Launch *self, PyObject *gaps) {
  static const uint32_t sizes[KINDS] = {8, 4, 8, MAP_BYTES};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(gaps); i++) {
    Gap *gap = &self->gaps[i];
    unsigned kind, offset, place;
    unsigned long long shift;
    PyObject *kept;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(gaps, i), "IIIKO", &kind, &offset, &place, &shift, &kept)) return false;
    if (kind >= KINDS || place >= self->value_count || offset > self->byte_count || sizes[kind] > self->byte_count - offset) {
      return PyErr_SetString(PyExc_ValueError, "a gap lies outside the buffer or the values"), false;
    }
    *gap = (Gap){offset, place, (Kind)kind, shift, Py_NewRef(kept)};
    self->gap_count++;
  }
  return true;
}

static PyObject *new_launch(PyTypeObject *type, PyObject *arguments, PyObject *names) {
  unsigned long long function;
  unsigned x, y, z, threads, shared, value_count;
  int device, cooperative, dependent;
  Py_buffer ready;
  PyObject *parameters, *gaps;
  if (names != NULL && PyDict_GET_SIZE(names)) return PyErr_Format(PyExc_TypeError, "Launch takes no keywords");
  if (!PyArg_ParseTuple(arguments, "Ki(III)IIppy*O!O!I", &function, &device, &x, &y, &z, &threads, &shared, &cooperative, &dependent,
                        &ready, &PyTuple_Type, &parameters, &PyTuple_Type, &gaps, &value_count)) {
    return NULL;
  }
  Launch *self = NULL;
  if (ready.len > MOST_BYTES || PyTuple_GET_SIZE(parameters) > MOST_PARAMETERS || PyTuple_GET_SIZE(gaps) > MOST_PARAMETERS) {
    PyErr_SetString(PyExc_LookupError, "a kernel has more parameters than a launch takes");
  } else if (value_count == 0 || (uint64_t)x * y * z == 0) {
    PyErr_SetString(PyExc_ValueError, "a launch needs a grid and a stream");
  } else {
    self = (Launch *)type->tp_alloc(type, 0);
  }
  if (self != NULL) {
    self->call = call_launch;
    self->function = (CUfunction)function;
    self->device = device;
    self->grid[0] = x, self->grid[1] = y, self->grid[2] = z;
    self->threads = threads, self->shared = shared;
    self->cooperative = cooperative, self->dependent = dependent;
    self->value_count = value_count;
    self->byte_count = (uint32_t)ready.len;
    memcpy(self->buffer, ready.buf, ready.len);
    if (!take_parameters(self, parameters) || !take_gaps(self, gaps)) Py_CLEAR(self);
  }
  PyBuffer_Release(&ready);
  return (PyObject *)self;
}

static void free_launch(PyObject *self) {
  Launch *launch = (Launch *)self;
  for (uint32_t i = 0; i < launch->gap_count; i++) Py_XDECREF(launch->gaps[i].kept);
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "minblas_launch.Launch",
    .tp_doc = "Called with a tuple of values, launches a kernel.",
    .tp_basicsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launch, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = new_launch,
    .tp_dealloc = free_launch,
};

static bool find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  if (found == NULL) return PyErr_Format(PyExc_ImportError, "libcuda.so.1 has no %s", name), false;
  memcpy(function, &found, sizeof(found));
  return true;
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "minblas_launch", .m_size = -1};

PyMODINIT_FUNC PyInit_minblas_launch(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY);
  if (library == NULL) return PyErr_Format(PyExc_ImportError, "libcuda.so.1 cannot be loaded");
  if (!find(library, "cuLaunchKernelEx", &launch_kernel) || !find(library, "cuCtxGetCurrent", &get_context) ||
      !find(library, "cuCtxSetCurrent", &set_context) || !find(library, "cuDeviceGet", &get_device) ||
      !find(library, "cuDevicePrimaryCtxRetain", &retain_context) || !find(library, "cuGetErrorString", &error_string) ||
      !find(library, "cuFuncGetParamInfo", &parameter_info)) {
    return NULL;
  }
  if (PyType_Ready(&LaunchType) < 0) return NULL;
  PyObject *made = PyModule_Create(&module);
  if (made != NULL && PyModule_AddObjectRef(made, "Launch", (PyObject *)&LaunchType) < 0) Py_CLEAR(made);
  return made;
}
