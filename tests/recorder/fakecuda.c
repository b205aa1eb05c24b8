/* A driver, a CUPTI and a GPU without any of them, for tests: one library, as libcuda.so.1 and as libcupti.so.13.

   The GPU executes on one stream, in order, by CLOCK_MONOTONIC: what is launched begins 5 us after its call returns or
   when the GPU is free, and an event's time is when the GPU reaches it.  Records have the sizes of CUPTI 13.0, or of what
   FAKE_CUPTI names: 11.8, or "unknown" (a kernel's record of a size that nobody knows). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { MEMCPY = 1, DRIVER = 4, RUNTIME = 5, CONTEXT = 9, KERNEL = 10, OVERHEAD = 17, EVENT = 36, STREAM = 37, SYNC = 38, GRAPH = 51 };
enum { LAUNCH = 211, RECORD = 135, SYNCHRONIZE = 165, GET_DEVICE = 9, COPY = 41, GRAPH_LAUNCH = 311 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*requested)(uint8_t **, size_t *, size_t *);
static void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);
static uint64_t (*stamp)(void);
static uint8_t *buffer;
static size_t size, used;
static int enabled[64], quiet[2][1024], dropped, calls_in_flush;
static uint32_t correlation;
static uint64_t free_at;
static void (*listener)(void *, int, uint32_t, const uint32_t *);

static uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static int version_is(const char *text) { const char *v = getenv("FAKE_CUPTI"); return v && !strcmp(v, text); }
static size_t size_of(int kind) {
    int old = version_is("11.8");
    switch (kind) {
    case KERNEL: return version_is("unknown") ? 240 : old ? 200 : 216;
    case MEMCPY: return old ? 88 : 96;
    case RUNTIME: case DRIVER: return 40;
    case SYNC: return old ? 40 : 56;
    case EVENT: return old ? 24 : 56;
    case CONTEXT: return old ? 16 : 32;
    case GRAPH: return old ? 48 : 56;
    case OVERHEAD: return old ? 40 : 56;
    default: return 24;
    }
}

static void hand_over(void) {
    uint8_t *full = buffer;
    size_t valid = used, all = size;
    buffer = NULL, used = 0;
    if (full)
        completed(NULL, 0, full, all, valid);
}

/* Room for a record; `lock` is held. */
static uint8_t *record(int kind) {
    size_t needed = size_of(kind), most;
    if (!enabled[kind])
        return NULL;
    if (buffer && used + needed > size)
        hand_over();
    if (!buffer)
        requested(&buffer, &size, &most);
    if (!buffer) {
        dropped++;
        return NULL;
    }
    uint8_t *at = buffer + used;
    memset(at, 0, needed);
    *(uint32_t *)at = (uint32_t)kind;
    used += needed;
    return at;
}
#define PUT(type, at, value) (*(type *)(r + (at)) = (type)(value))

static void api(uint32_t cbid, uint64_t start, uint64_t end, uint32_t number) {
    if (quiet[1][cbid])
        return;
    uint8_t *r = record(RUNTIME);
    if (r)
        PUT(uint32_t, 4, cbid), PUT(uint64_t, 8, start), PUT(uint64_t, 16, end), PUT(uint32_t, 24, getpid()), PUT(uint32_t, 28, syscall(SYS_gettid)), PUT(uint32_t, 32, number);
}

/* Tells a subscriber of a call's beginning and end, outside of all locks. */
static int domains[3], inside, finalized;
static void tell(int domain, uint32_t cbid, uint32_t site) {
    if (!site)
        __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (listener && domains[domain])
        listener(NULL, domain, cbid, &site);
    if (site)
        __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

static void spin(uint64_t ns) { for (uint64_t t = clock_ns(); clock_ns() - t < ns;) ; }

/* --- the program's calls */

EXPORT int cuInit(unsigned flags) {
    static int done;
    (void)flags;
    const char *tool = getenv("CUDA_INJECTION64_PATH");
    if (!done && (done = 1) && tool && *tool) { /* as the driver does */
        void *library = dlopen(tool, RTLD_NOW);
        int (*initialise)(void) = library ? dlsym(library, "InitializeInjection") : NULL;
        if (initialise)
            initialise();
        memset(domains, 0, sizeof domains); /* what a subscriber asks for meanwhile is forgotten (CUPTI 13.0) */
        pthread_mutex_lock(&lock);
        uint8_t *r = record(CONTEXT);
        if (r)
            PUT(uint32_t, 4, 1), PUT(uint32_t, 8, 0), PUT(uint16_t, 12, 1), PUT(uint16_t, 14, 7);
        r = record(STREAM);
        if (r)
            PUT(uint32_t, 4, 1), PUT(uint32_t, 8, 13), PUT(uint32_t, 16, 2); /* 13 is non-blocking */
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return 0; }
EXPORT int cuDeviceGetName(char *out, int length, int device) { (void)device; snprintf(out, (size_t)length, "Fake GPU"); return 0; }
EXPORT int cuDeviceGetAttribute(int *out, int which, int device) { (void)device; *out = which == 16 ? 132 : which == 38 ? 50 << 20 : which == 37 ? 5120 : 1000000; return 0; }

static const char *const NAMES[] = {"_ZN4fake4addsEPfi", "_ZN4fake4mulsEPfi"};
EXPORT void fake_launch(int which, uint64_t lasts) {
    uint64_t t0 = clock_ns();
    tell(2, LAUNCH, 0);
    spin(3000);
    pthread_mutex_lock(&lock);
    uint64_t t1 = clock_ns(), start = t1 + 5000 > free_at ? t1 + 5000 : free_at;
    uint32_t number = ++correlation;
    api(LAUNCH, t0, t1, number);
    uint8_t *r = record(KERNEL);
    free_at = start + lasts;
    if (r)
        PUT(uint16_t, 6, 32), PUT(uint64_t, 16, start), PUT(uint64_t, 24, free_at), PUT(uint32_t, 44, 1), PUT(uint32_t, 48, 7), PUT(uint32_t, 52, 100),
            PUT(uint32_t, 56, 1), PUT(uint32_t, 60, 1), PUT(uint32_t, 64, 256), PUT(uint32_t, 68, 1), PUT(uint32_t, 72, 1), PUT(uint32_t, 92, number),
            PUT(const char *, 104, NAMES[which & 1]);
    pthread_mutex_unlock(&lock);
    tell(2, LAUNCH, 1);
}
EXPORT void fake_zero_kernel(void) { /* as some come from CUPTI 12.6 U2 on, with a clock of the tool's own */
    pthread_mutex_lock(&lock);
    uint8_t *r = record(KERNEL);
    if (r)
        PUT(uint32_t, 44, 1), PUT(uint32_t, 48, 7), PUT(const char *, 104, NAMES[0]);
    pthread_mutex_unlock(&lock);
}
EXPORT uint64_t fake_record(void) { /* when the GPU reaches it */
    uint64_t t0 = clock_ns();
    tell(2, RECORD, 0);
    spin(1000);
    pthread_mutex_lock(&lock);
    uint64_t t1 = clock_ns(), at = (t1 + 4000 > free_at ? t1 + 4000 : free_at) + 500;
    uint32_t number = ++correlation;
    api(RECORD, t0, t1, number);
    free_at = at;
    pthread_mutex_unlock(&lock);
    tell(2, RECORD, 1);
    return at;
}
EXPORT void fake_synchronize(void) {
    uint64_t t0 = clock_ns();
    tell(2, SYNCHRONIZE, 0);
    while (clock_ns() < free_at)
        ;
    pthread_mutex_lock(&lock);
    uint32_t number = ++correlation;
    uint64_t t1 = clock_ns();
    api(SYNCHRONIZE, t0, t1, number);
    uint8_t *r = record(SYNC);
    if (r)
        PUT(uint32_t, 4, 4), PUT(uint64_t, 8, t0), PUT(uint64_t, 16, t1), PUT(uint32_t, 24, number), PUT(uint32_t, 28, 1), PUT(uint32_t, 32, -1), PUT(uint32_t, 36, -1);
    pthread_mutex_unlock(&lock);
    tell(2, SYNCHRONIZE, 1);
}
EXPORT void fake_graph(uint64_t lasts) {
    uint64_t t0 = clock_ns();
    static int whole, made; /* what CUPTI puts into a graph that it records as a whole must be there while it is replayed */
    if (made && whole != enabled[GRAPH] && (finalized || enabled[GRAPH]))
        abort();
    whole = enabled[GRAPH], made = 1;
    tell(2, GRAPH_LAUNCH, 0);
    spin(3000);
    pthread_mutex_lock(&lock);
    uint64_t t1 = clock_ns(), start = t1 + 5000 > free_at ? t1 + 5000 : free_at;
    uint32_t number = ++correlation;
    api(GRAPH_LAUNCH, t0, t1, number);
    uint8_t *r = record(GRAPH);
    free_at = start + lasts;
    if (r)
        PUT(uint32_t, 4, number), PUT(uint64_t, 8, start), PUT(uint64_t, 16, free_at), PUT(uint32_t, 28, 5), PUT(uint32_t, 32, 1), PUT(uint32_t, 36, 7);
    pthread_mutex_unlock(&lock);
    tell(2, GRAPH_LAUNCH, 1);
}
/* A call in which its thread is for so long. */
EXPORT void fake_long_call(uint64_t lasts) { tell(2, COPY, 0); usleep((unsigned)(lasts / 1000)); tell(2, COPY, 1); }
EXPORT int cuCtxGetCurrent(void **out) { tell(1, 304, 0); *out = (void *)1; tell(1, 304, 1); return 0; }
EXPORT int cuCtxSetCurrent(void *context) { (void)context; return 0; }
static int blocked;
EXPORT void fake_block(int on) { blocked = on; } /* the GPU waits for the CPU */
EXPORT int cuCtxSynchronize(void) {
    tell(1, 17, 0);
    while (__atomic_load_n(&blocked, __ATOMIC_SEQ_CST) || clock_ns() < free_at)
        usleep(10);
    tell(1, 17, 1);
    return 0;
}
EXPORT int fake_finalized(void) { return finalized; }
EXPORT void fake_get_device(void) {
    uint64_t t = clock_ns();
    pthread_mutex_lock(&lock);
    api(GET_DEVICE, t, clock_ns(), ++correlation);
    pthread_mutex_unlock(&lock);
}
EXPORT int fake_flushes(void) { return calls_in_flush; }
EXPORT int fake_holds_a_buffer(void) { return buffer != NULL; }
/* A call that was going on when its kind was disabled ends, and is recorded. */
EXPORT void fake_late_record(void) {
    pthread_mutex_lock(&lock);
    int before = enabled[RUNTIME];
    enabled[RUNTIME] = 1;
    api(LAUNCH, clock_ns(), clock_ns(), ++correlation);
    enabled[RUNTIME] = before;
    pthread_mutex_unlock(&lock);
}

/* --- CUPTI */

EXPORT int cuptiGetVersion(uint32_t *out) { *out = version_is("11.8") ? 18 : version_is("13.1.1") ? 130101 : 130001; return 0; }
EXPORT int cuptiActivityRegisterCallbacks(void *a, void *b) { requested = a, completed = b; return 0; }
EXPORT int cuptiActivityRegisterTimestampCallback(void *f) { stamp = f; return 0; }
EXPORT int cuptiSetThreadIdType(int type) { return type != 1; }
EXPORT int cuptiActivityEnable(int kind) {
    if (getenv("FAKE_CUPTI_REFUSES"))
        return atoi(getenv("FAKE_CUPTI_REFUSES"));
    enabled[kind] = 1;
    return 0;
}
EXPORT int cuptiActivityDisable(int kind) { enabled[kind] = 0; return 0; }
EXPORT int cuptiActivityFlushAll(uint32_t forced) {
    (void)forced;
    pthread_mutex_lock(&lock);
    calls_in_flush++;
    if (buffer && used)
        hand_over();
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT int cuptiActivityGetNextRecord(uint8_t *data, size_t valid, uint8_t **at) {
    uint8_t *next = *at ? *at + size_of(*(int *)*at) : data;
    if (next >= data + valid)
        return 15;
    *at = next;
    return 0;
}
EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *out) { (void)context, (void)stream; *out = (size_t)dropped; dropped = 0; return 0; }
EXPORT int cuptiGetCallbackName(int domain, uint32_t number, const char **out) {
    if (domain != 2)
        return 1;
    switch (number) {
    case LAUNCH: *out = "cudaLaunchKernel_v7000"; return 0;
    case RECORD: *out = "cudaEventRecord_v3020"; return 0;
    case SYNCHRONIZE: *out = "cudaDeviceSynchronize_v3020"; return 0;
    case GRAPH_LAUNCH: *out = "cudaGraphLaunch_v10000"; return 0;
    case GET_DEVICE: *out = "cudaGetDevice_v3020"; return 0;
    default: return 1;
    }
}
EXPORT int cuptiGetResultString(int status, const char **out) {
    *out = status == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : status == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN";
    return 0;
}
#ifndef WITHOUT_125 /* since CUDA 12.5 */
EXPORT int cuptiActivityEnableRuntimeApi(uint32_t number, uint8_t on) { quiet[1][number] = !on; return 0; }
EXPORT int cuptiActivityEnableDriverApi(uint32_t number, uint8_t on) { quiet[0][number] = !on; return 0; }
#endif
EXPORT int cuptiSubscribe(void **out, void *callback, void *data) {
    (void)data;
    if (listener || getenv("FAKE_CUPTI_LISTENED"))
        return 39;
    listener = callback, *out = (void *)2;
    return 0;
}
EXPORT int cuptiUnsubscribe(void *subscriber) { (void)subscriber; listener = NULL, memset(domains, 0, sizeof domains); return 0; }
EXPORT int cuptiEnableDomain(uint32_t on, void *subscriber, int domain) { (void)subscriber; domains[domain] = (int)on; return 0; }
EXPORT int cuptiFinalize(void) { /* with a subscriber from the end of a call, and nobody else may be in one */
    if (listener && __atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 1)
        abort();
    pthread_mutex_lock(&lock);
    memset(enabled, 0, sizeof enabled), memset(quiet, 0, sizeof quiet), memset(domains, 0, sizeof domains);
    listener = NULL, stamp = NULL, requested = NULL, completed = NULL, buffer = NULL, used = 0;
    correlation = 0, finalized++;
    pthread_mutex_unlock(&lock);
    return 0;
}
