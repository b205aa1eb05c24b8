// Build: g++ -O2 -shared -fPIC -I<cupti include> -o libcupti_truth.so cupti_truth.cpp -L<cupti lib> -l:libcupti.so.13   (headers and library: the package nvidia-cuda-cupti and nvidia-cuda-runtime)
// Ground truth for alignment: a CUPTI injection library that writes every CUDA activity of the process,
// with the GPU's own timestamp of each recorded CUDA event, to a TSV file ($CUPTI_TRUTH_OUT, %p in it: the pid).
// Load with CUDA_INJECTION64_PATH.  One line per record; the first field names the kind.
#include <cupti.h>
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
#include <sys/syscall.h>
static FILE *out; static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
#define CK(x) do { CUptiResult r_ = (x); if (r_) { const char *s=0; cuptiGetResultString(r_, &s); fprintf(stderr, "cupti_truth: %s: %s\n", #x, s); } } while (0)
static void CUPTIAPI req(uint8_t **b, size_t *n, size_t *k) { *n = 8u << 20; *b = (uint8_t*)aligned_alloc(8, *n); *k = 0; }
static void CUPTIAPI done(CUcontext, uint32_t, uint8_t *b, size_t, size_t valid) {
  pthread_mutex_lock(&m);
  CUpti_Activity *r = 0;
  while (cuptiActivityGetNextRecord(b, valid, &r) == CUPTI_SUCCESS) {
    switch (r->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: case CUPTI_ACTIVITY_KIND_KERNEL: { auto k = (CUpti_ActivityKernel10*)r;
        fprintf(out, "KERNEL\t%llu\t%llu\t%u\t%u\t%u\t%u\t%s\t%u\t%llu\t%lld\n", (unsigned long long)k->start, (unsigned long long)k->end, k->deviceId, k->contextId, k->streamId, k->correlationId, k->name, k->graphId, (unsigned long long)k->graphNodeId, (long long)k->gridId); break; }
      case CUPTI_ACTIVITY_KIND_MEMCPY: { auto k = (CUpti_ActivityMemcpy6*)r;
        fprintf(out, "MEMCPY\t%llu\t%llu\t%u\t%u\t%u\t%u\t%u\t%u\t%u\t%llu\n", (unsigned long long)k->start, (unsigned long long)k->end, k->deviceId, k->contextId, k->streamId, k->correlationId, k->copyKind, k->srcKind, k->dstKind, (unsigned long long)k->bytes); break; }
      case CUPTI_ACTIVITY_KIND_MEMSET: { auto k = (CUpti_ActivityMemset4*)r;
        fprintf(out, "MEMSET\t%llu\t%llu\t%u\t%u\t%u\t%u\t%llu\n", (unsigned long long)k->start, (unsigned long long)k->end, k->deviceId, k->contextId, k->streamId, k->correlationId, (unsigned long long)k->bytes); break; }
      case CUPTI_ACTIVITY_KIND_RUNTIME: case CUPTI_ACTIVITY_KIND_DRIVER: { auto k = (CUpti_ActivityAPI*)r; const char *n = 0;
        cuptiGetCallbackName(r->kind == CUPTI_ACTIVITY_KIND_RUNTIME ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API, k->cbid, &n);
        fprintf(out, "%s\t%llu\t%llu\t%u\t%u\t%u\t%u\t%s\n", r->kind == CUPTI_ACTIVITY_KIND_RUNTIME ? "RUNTIME" : "DRIVER", (unsigned long long)k->start, (unsigned long long)k->end, k->processId, k->threadId, k->correlationId, k->returnValue, n ? n : "?"); break; }
      case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: { auto k = (CUpti_ActivitySynchronization2*)r;
        fprintf(out, "SYNC\t%llu\t%llu\t%u\t%u\t%u\t%u\t%u\t%llu\n", (unsigned long long)k->start, (unsigned long long)k->end, k->contextId, k->streamId, k->correlationId, (unsigned)k->type, k->cudaEventId, (unsigned long long)k->cudaEventSyncId); break; }
      case CUPTI_ACTIVITY_KIND_CUDA_EVENT: { auto k = (CUpti_ActivityCudaEvent2*)r;
        fprintf(out, "EVENT\t%llu\t%u\t%u\t%u\t%u\t%u\t%llu\n", (unsigned long long)k->deviceTimestamp, k->deviceId, k->contextId, k->streamId, k->correlationId, k->eventId, (unsigned long long)k->cudaEventSyncId); break; }
      case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: { auto k = (CUpti_ActivityGraphTrace2*)r;
        fprintf(out, "GRAPH\t%llu\t%llu\t%u\t%u\t%u\t%u\t%u\n", (unsigned long long)k->start, (unsigned long long)k->end, k->deviceId, k->contextId, k->streamId, k->correlationId, k->graphId); break; }
      default: break;
    }
  }
  fflush(out); free(b); pthread_mutex_unlock(&m);
}
static void fin() { CK(cuptiActivityFlushAll(1)); fflush(out); }
extern "C" int InitializeInjection(void) {
  const char *p = getenv("CUPTI_TRUTH_OUT"); if (!p || out) return 1;
  char path[4096]; const char *mark = strstr(p, "%p");  // %p becomes the pid: one file per process
  if (mark) snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - p), p, getpid(), mark + 2); else snprintf(path, sizeof path, "%s", p);
  out = fopen(path, "w"); if (!out) return 1;
  CK(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));  // what the event log and nsys call a thread
  CK(cuptiActivityRegisterCallbacks(req, done));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CUDA_EVENT));
  CK(cuptiActivityEnableCudaEventDeviceTimestamps(1));
  if (getenv("CUPTI_TRUTH_GRAPH")) CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE));
  uint64_t t; CK(cuptiGetTimestamp(&t)); fprintf(out, "START\t%llu\t%d\n", (unsigned long long)t, getpid());
  atexit(fin); return 1;
}
