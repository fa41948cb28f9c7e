/* A puppet of libcudart and libcuda as one library: the memory of its only GPU is POSIX shared memory, whose name is
 * the handle. Only what sharing memory between processes needs. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { char reserved[64]; } Handle;
typedef struct { char *begin; size_t size; char name[64]; int owned; } Allocation;

enum { OK = 0, INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_DEVICE = 101, INVALID_HANDLE = 400 };

static Allocation known[64];
static int device = -1;

static Allocation *find(const char *address) {
    for (int i = 0; i < 64; i++)
        if (known[i].begin && address >= known[i].begin && address < known[i].begin + known[i].size) return &known[i];
    return NULL;
}

static int map(const char *name, size_t size, int owned, void **out) {
    int fd = shm_open(name, O_RDWR | (owned ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0) return INVALID_HANDLE;
    struct stat status;
    if (owned ? ftruncate(fd, (off_t)size) : fstat(fd, &status)) { close(fd); return NO_MEMORY; }
    if (!owned) size = (size_t)status.st_size;
    void *begin = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (begin == MAP_FAILED) return NO_MEMORY;
    for (int i = 0; i < 64; i++)
        if (!known[i].begin) {
            known[i].begin = begin, known[i].size = size, known[i].owned = owned;
            snprintf(known[i].name, sizeof known[i].name, "%s", name);
            *out = begin;
            return OK;
        }
    return NO_MEMORY;
}

static int unmap(void *address, int owned) {
    Allocation *found = find(address);
    if (!found || found->begin != address || found->owned != owned) return INVALID_VALUE;
    if (owned) shm_unlink(found->name);
    munmap(found->begin, found->size);
    found->begin = NULL;
    return OK;
}

/* As the driver does it for a process that ends and has freed nothing; one that was forked has made none. */
__attribute__((destructor)) static void free_all(void) {
    int maker;
    for (int i = 0; i < 64; i++)
        if (known[i].begin && sscanf(known[i].name, "/stoker-tests-cuda-%d", &maker) == 1 && maker == getpid())
            shm_unlink(known[i].name);
}

int cuDriverGetVersion(int *version) { *version = 13000; return OK; }

int cuMemGetAddressRange_v2(void **base, size_t *size, void *address) {
    Allocation *found = find(address);
    if (!found) return INVALID_VALUE;
    *base = found->begin, *size = found->size;
    return OK;
}

int cuGetErrorName(int code, const char **name) { (void)code; *name = "CUDA_ERROR_INVALID_VALUE"; return OK; }

int cudaSetDevice(int number) {
    if (number) return INVALID_DEVICE;
    device = number;
    return OK;
}

int cudaMalloc(void **out, size_t size) {
    static int made;
    char name[64];
    snprintf(name, sizeof name, "/stoker-tests-cuda-%d-%d", getpid(), made++);
    return map(name, size, 1, out);
}

int cudaFree(void *address) { return address ? unmap(address, 1) : OK; }

int cudaIpcGetMemHandle(Handle *handle, void *address) {
    Allocation *found = find(address);
    if (!found) return INVALID_VALUE;
    memcpy(handle->reserved, found->name, sizeof handle->reserved);
    return OK;
}

int cudaIpcOpenMemHandle(void **out, Handle handle, unsigned flags) {
    if (device < 0 || flags != 1 || handle.reserved[63]) return INVALID_VALUE;
    if (strncmp(handle.reserved, "/stoker-tests-cuda-", 19)) return INVALID_HANDLE;
    return map(handle.reserved, 0, 0, out);
}

int cudaIpcCloseMemHandle(void *address) { return unmap(address, 0); }

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    const char *at = kind == 1 ? to : from;
    Allocation *found = find(at);
    /* Who reaches behind an allocation is to die of it, which tests see. */
    if (!found || at + size > found->begin + found->size) abort();
    memcpy(to, from, size);
    return OK;
}

int cudaStreamSynchronize(void *stream) { return stream ? INVALID_VALUE : OK; }

int cudaGetLastError(void) { return OK; }

const char *cudaGetErrorName(int code) {
    switch (code) {
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case NO_MEMORY: return "cudaErrorMemoryAllocation";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case INVALID_HANDLE: return "cudaErrorInvalidResourceHandle";
    default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(int code) { return cudaGetErrorName(code); }
