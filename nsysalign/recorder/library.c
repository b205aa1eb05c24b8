/* Records what CUPTI reports of a process, and its NVTX ranges, in a file.

   application, CUPTI's threads --- full buffers, names ---> queue ---> writer ---> FOLDER/raw/PID-N.cupti

   Nothing here takes the interpreter's lock or outlives what it needs: a buffer that CUPTI still holds is never freed,
   a forked child whose parent recorded neither calls CUPTI nor writes.  All times are CLOCK_MONOTONIC, in nanoseconds,
   which is also the clock of the event log.  No header of CUDA is needed: what is called is declared here.

   Three ways in: the driver calls InitializeInjection when a process first uses the GPU (CUDA_INJECTION64_PATH), NVTX
   calls InitializeInjectionNvtx2 (NVTX_INJECTION64_PATH), and Python calls nsysalign_*.

   The file: chunks of a kind, a number, the length of what follows, and that, padded to 8 bytes.
     H  the header, JSON        B  a buffer of CUPTI's records; names of kernels are numbers
     T  number -> text          C  domain << 24 | number -> name of a call        S  kind of record -> its size (8 bytes)
     N  events of NVTX (struct nvtx)    G  device -> GPU, JSON                     M  a message, text
     V  CUPTI's version, where it is known only after the header was written (NVTX came before CUDA)
     X  a switch: 0 recording ended, CUPTI is out of the process; 1 it began again; 2 it could not leave.  When the switch
        began and was over.  Numbers of calls (correlation ids) begin anew after each 1
   What a chunk refers to stands before it.  The last one may be cut short. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_NAMES (1u << 20) /* of slots of the tables of names: more than 700,000 different texts are not kept */

enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, CONTEXT = 9, KERNEL = 10, OVERHEAD = 17, MEMCPY2 = 22,
       EVENT = 36, STREAM = 37, SYNC = 38, GRAPH = 51 };
static const int KINDS[] = {CONTEXT, STREAM, MEMCPY, MEMSET, MEMCPY2, DRIVER, RUNTIME, SYNC, EVENT, OVERHEAD, GRAPH, KERNEL};
enum { KINDS_IN_ALL = sizeof KINDS / sizeof *KINDS, MOST_KINDS = 64, MOST_CALLS = 2048 };
enum { NAME_AT = 104, CBID_AT = 4, THREAD_AT = 28, SPARES = 8 };
enum { QUIET_US = 20000 /* about as long as cuptiFinalize takes */, AT_REST_NS = 100000000 };
enum { GRAPHS_FROM = 24 /* CUPTI 12.6: graphs as a whole crash until 12.5 U1 */ };

/* --- CUPTI, as far as it is called; an absent function is NULL */
static struct {
    int (*version)(uint32_t *);
    int (*enable)(int), (*disable)(int), (*flush)(uint32_t), (*finalize)(void);
    int (*register_callbacks)(void *, void *), (*register_clock)(void *), (*thread_ids)(int);
    int (*next)(uint8_t *, size_t, uint8_t **), (*dropped)(void *, uint32_t, size_t *);
    int (*call_name)(int, uint32_t, const char **), (*event_times)(uint8_t);
    int (*runtime_api)(uint32_t, uint8_t), (*driver_api)(uint32_t, uint8_t);
    int (*result)(int, const char **);
    int (*subscribe)(void **, void *, void *), (*unsubscribe)(void *), (*enable_domain)(uint32_t, void *, int);
} cupti;
static const struct { const char *name; void *function; } FUNCTIONS[] = {
    {"cuptiGetVersion", &cupti.version}, {"cuptiActivityEnable", &cupti.enable},
    {"cuptiActivityDisable", &cupti.disable}, {"cuptiActivityFlushAll", &cupti.flush},
    {"cuptiActivityRegisterCallbacks", &cupti.register_callbacks},
    {"cuptiActivityGetNextRecord", &cupti.next}, {"cuptiGetCallbackName", &cupti.call_name},
    {"cuptiGetResultString", &cupti.result}, {"cuptiActivityRegisterTimestampCallback", &cupti.register_clock},
    {"cuptiSetThreadIdType", &cupti.thread_ids}, /* what follows may be absent */
    {"cuptiFinalize", &cupti.finalize}, {"cuptiActivityGetNumDroppedRecords", &cupti.dropped},
    {"cuptiActivityEnableCudaEventDeviceTimestamps", &cupti.event_times},
    {"cuptiActivityEnableRuntimeApi", &cupti.runtime_api}, {"cuptiActivityEnableDriverApi", &cupti.driver_api},
    {"cuptiSubscribe", &cupti.subscribe}, {"cuptiUnsubscribe", &cupti.unsubscribe}, {"cuptiEnableDomain", &cupti.enable_domain}};
enum { NEEDED = 10 };

struct buffer { struct buffer *next; size_t valid; uint8_t kind, *data; };
struct bytes { uint8_t *data; size_t size, room; };
struct nvtx { uint32_t what, thread; uint64_t ns, a, b; }; /* what: 1 push, 2 pop, 3 start, 4 end */

/* --- state of this process.  `lock`: queue, spare buffers, names, NVTX (never held while CUPTI is called);
   `file_lock`: the file; `calls`: who starts, flushes and stops */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, file_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work;
static struct buffer *first, **last = &first, *spare, *events;
static struct bytes texts;
static pid_t process;
static int recording, writing, aside, dead, full, over, prepared, gpus_known;
static uint32_t version;
static size_t buffer_size = 256 << 10, sizes[MOST_KINDS];
static uint64_t limit = 2000000000, written, numbers, ranges, records;
static int with_nodes, with_event_times;
static uint8_t seen_call[2][MOST_CALLS], cheap_call[2][MOST_CALLS];
static uint32_t callers[16]; /* threads that called CUDA since it began to record */
static size_t callers_known;
static struct name { char *text; uint64_t number; } *names;            /* by their text */
static struct pointer { const char *at; struct name *name; } *kernels; /* by their address */
static size_t names_used, kernels_used;
static char folder[3800], path[4096], problem[600];
static int file = -1;
static struct stat identity;

/* Turns (option "turns"): CUPTI leaves the process for a while, which gives its calls their own speed back.
   `over`: no more of them.  `ranges_open`: of the program, and of the probe. */
static struct { int wanted, over, resting, session, graphs, ranges_open, listens; void *subscriber; } turns = {.session = 1};

static uint64_t clock_of(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
/* Whether `calls` was taken: who holds it may hang in CUPTI, and nobody hangs because of that. */
static int took_calls(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    return !pthread_mutex_timedlock(&calls, &until);
}
static uint64_t monotonic(void) { return clock_of(CLOCK_MONOTONIC); }
static uint64_t realtime(void) { return clock_of(CLOCK_REALTIME); } /* what CUPTI's own clock shows */

/* --- chunks.  `lock` is held */

static void chunk(int kind, uint32_t number, const void *data, size_t size) {
    size_t whole = 16 + ((size + 7) & ~(size_t)7);
    if (texts.size + whole > texts.room) {
        size_t room = (texts.size + whole) * 2;
        uint8_t *more = realloc(texts.data, room);
        if (!more)
            return;
        texts.data = more, texts.room = room;
    }
    uint32_t head[4] = {(uint32_t)kind, number, (uint32_t)size, 0};
    memset(texts.data + texts.size, 0, whole);
    memcpy(texts.data + texts.size, head, 16);
    memcpy(texts.data + texts.size + 16, data, size);
    texts.size += whole;
}

static void say(const char *format, ...) {
    char line[600];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    chunk('M', 0, line, length < (int)sizeof line ? (size_t)length : sizeof line - 1);
}

/* A name of C++ as it was written, if the C++ library is there; to be freed. */
static char *demangled(const char *text) {
    static char *(*of_library)(const char *, char *, size_t *, int *);
    static int tried;
    int status = 0;
    if (!tried) {
        tried = 1;
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY);
        void *found = library ? dlsym(library, "__cxa_demangle") : NULL;
        memcpy(&of_library, &found, sizeof found);
    }
    return of_library && !strncmp(text, "_Z", 2) ? of_library(text, NULL, NULL, &status) : NULL;
}

/* The number of a text, which is in the file before whatever refers to it; 0 if there are too many. */
static struct name *named(const char *text, int of_kernel) {
    static struct name none = {"", 0};
    uint64_t hash = 1469598103934665603u;
    for (const char *c = text; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    if (!names && !(names = calloc(MOST_NAMES, sizeof *names)))
        return &none;
    size_t i = (hash ^ hash >> 32) % MOST_NAMES;
    for (; names[i].text; i = (i + 1) % MOST_NAMES)
        if (!strcmp(names[i].text, text))
            return &names[i];
    if (names_used >= MOST_NAMES / 3 * 2 || !(names[i].text = strdup(text)))
        return &none;
    names_used++;
    names[i].number = ++numbers;
    char *plain = of_kernel ? demangled(text) : NULL;
    chunk('T', (uint32_t)numbers, plain ? plain : text, strlen(plain ? plain : text));
    free(plain);
    return &names[i];
}

/* The same for the name of a kernel, which is looked up by its address; another module may have another name there. */
static uint64_t kernel_number(const char *at) {
    if (!at)
        return 0;
    if (!kernels && !(kernels = calloc(MOST_NAMES, sizeof *kernels)))
        return 0;
    size_t i = ((uintptr_t)at >> 3) * 2654435761u % MOST_NAMES;
    while (kernels[i].at && kernels[i].at != at)
        i = (i + 1) % MOST_NAMES;
    if (!kernels[i].at) {
        if (kernels_used >= MOST_NAMES / 3 * 2)
            return named(at, 1)->number;
        kernels_used++, kernels[i].at = at;
    }
    if (!kernels[i].name || strcmp(kernels[i].name->text, at))
        kernels[i].name = named(at, 1);
    return kernels[i].name->number;
}

/* --- the file */

static void about_gpus(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*count)(int *) = cuda ? dlsym(cuda, "cuDeviceGetCount") : NULL;
    int (*name)(char *, int, int) = cuda ? dlsym(cuda, "cuDeviceGetName") : NULL;
    int (*attribute)(int *, int, int) = cuda ? dlsym(cuda, "cuDeviceGetAttribute") : NULL;
    int devices = 0;
    if (gpus_known || !count || !name || !attribute || count(&devices) || !devices)
        return;
    gpus_known = 1;
    for (int device = 0; device < devices; device++) {
        char text[200] = "", line[500];
        int multiprocessors = 0, l2 = 0, khz = 0, bits = 0;
        if (name(text, sizeof text, device))
            continue;
        attribute(&multiprocessors, 16, device), attribute(&l2, 38, device);
        attribute(&khz, 36, device), attribute(&bits, 37, device);
        for (char *c = text; *c; c++)
            if (*c == '"' || *c == '\\' || (uint8_t)*c < 32)
                *c = ' ';
        int length = snprintf(line, sizeof line, "{\"name\":\"%s\",\"smCount\":%d,\"l2CacheSize\":%d,\"memoryBandwidth\":%lld}", text, multiprocessors, l2, 2000LL * khz * (bits / 8));
        pthread_mutex_lock(&lock);
        chunk('G', (uint32_t)device, line, (size_t)length);
        pthread_mutex_unlock(&lock);
    }
}

static int open_file(void) {
    struct stat now;
    if (file >= 0 && !fstat(file, &now) && now.st_dev == identity.st_dev && now.st_ino == identity.st_ino)
        return 1;
    int again = file >= 0; /* the program closed all descriptors, and may have another file there now */
    file = -1;
    if (again)
        file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    for (int n = 0; !again && file < 0 && n < 10000; n++) { /* exec() keeps the pid */
        snprintf(path, sizeof path, "%s/%d-%d.cupti", folder, (int)process, n);
        file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST)
            break;
    }
    if (file < 0)
        return 0;
    int high = fcntl(file, F_DUPFD_CLOEXEC, 900); /* programs use low numbers without asking */
    if (high >= 0)
        close(file), file = high;
    fstat(file, &identity);
    if (!again) {
        char line[700], driver[80] = "";
        FILE *of_driver = fopen("/sys/module/nvidia/version", "re");
        if (of_driver) {
            if (!fgets(driver, sizeof driver, of_driver))
                *driver = 0;
            fclose(of_driver);
            driver[strspn(driver, "0123456789.")] = 0;
        }
        uint64_t at = monotonic(), real = realtime();
        int length = snprintf(line, sizeof line, "{\"format\":\"nsysalign-cupti\",\"version\":2,\"pid\":%d,\"cupti\":%u,\"driver\":\"%s\",\"clock\":\"monotonic\",\"monotonic_ns\":%llu,\"realtime_ns\":%llu,\"graphs\":\"%s\",\"event_times\":%d,\"session\":%d}",
            (int)process, version, driver, (unsigned long long)at, (unsigned long long)real,
            version && (with_nodes || version < GRAPHS_FROM) ? "nodes" : "whole", with_event_times, turns.session);
        struct bytes kept = texts; /* the header comes first */
        memset(&texts, 0, sizeof texts);
        chunk('H', 1, line, (size_t)length);
        ssize_t done = write(file, texts.data, texts.size);
        written += texts.size;
        int whole = done == (ssize_t)texts.size;
        free(texts.data);
        texts = kept;
        return whole;
    }
    return 1;
}

static int put(const void *data, size_t size) {
    for (const uint8_t *at = data; size;) {
        ssize_t done = write(file, at, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return 0;
        at += done, size -= (size_t)done, written += (uint64_t)done;
    }
    return 1;
}

/* Write all that waits.  Called by the writer once a second and when a buffer is full, and by whoever stops. */
static void write_out(void) {
    pthread_mutex_lock(&file_lock);
    pthread_mutex_lock(&lock);
    struct bytes said = texts;
    struct buffer *queue = first;
    int begun = said.size || queue;
    if (begun && !dead && !full && !open_file()) {
        full = 1;
        snprintf(problem, sizeof problem, "its file cannot be written (%s): what came later was lost", strerror(errno));
    }
    said = texts, memset(&texts, 0, sizeof texts);
    first = NULL, last = &first;
    pthread_mutex_unlock(&lock);
    uint64_t before = written;
    if (said.size && !dead && !full && !put(said.data, said.size))
        full = 1;
    for (struct buffer *b = queue; b; b = b->next) {
        uint32_t head[4] = {b->kind, 0, (uint32_t)b->valid, 0};
        if (dead || full || !b->valid)
            continue;
        if (written + b->valid > limit) {
            full = over = 1;
            break;
        }
        before = written;
        if (!put(head, sizeof head) || !put(b->data, (b->valid + 7) & ~(size_t)7))
            full = 1;
    }
    if (full && file >= 0 && !dead && !*problem) {
        if (over)
            snprintf(problem, sizeof problem, "it reached its limit of %llu MB: what came later was lost", (unsigned long long)(limit / 1000000));
        else {
            snprintf(problem, sizeof problem, "its file cannot be written (%s): what came later was lost", strerror(errno));
            written = ftruncate(file, (off_t)before) ? written : before; /* room for the last words */
        }
        size_t length = strlen(problem);
        uint32_t head[4] = {'M', 0, (uint32_t)length, 0};
        char padded[608] = {0};
        memcpy(padded, problem, length);
        if (put(head, sizeof head))
            put(padded, (length + 7) & ~(size_t)7);
    }
    pthread_mutex_lock(&lock);
    while (queue) {
        struct buffer *b = queue;
        queue = b->next, b->next = spare, spare = b;
    }
    pthread_mutex_unlock(&lock);
    free(said.data);
    pthread_mutex_unlock(&file_lock);
}

static void disable_all(void) {
    for (int i = 0; i < KINDS_IN_ALL; i++)
        cupti.disable(KINDS[i]);
}

static void queue_events(void) { /* `lock` is held */
    if (events && events->valid) {
        events->next = NULL, *last = events, last = &events->next;
        events = NULL;
    }
}

static struct buffer *made(void) {
    struct buffer *b = malloc(sizeof *b);
    if (b && !(b->data = aligned_alloc(4096, buffer_size))) {
        free(b);
        return NULL;
    }
    if (b)
        memset(b->data, 0, buffer_size); /* no page fault inside an interval */
    return b;
}

static struct buffer *fresh(int kind) { /* `lock` is held */
    struct buffer *b = spare;
    if (b)
        spare = b->next;
    else if (!(b = made()))
        return NULL;
    b->next = NULL, b->valid = 0, b->kind = (uint8_t)kind;
    return b;
}

/* Have some at hand, made outside of all locks. */
static void prepare_spares(void) {
    for (int i = 0; i < SPARES; i++) {
        pthread_mutex_lock(&lock);
        int enough = 0;
        for (struct buffer *b = spare; b; b = b->next)
            enough++;
        pthread_mutex_unlock(&lock);
        struct buffer *b = enough < SPARES ? made() : NULL;
        if (!b)
            return;
        pthread_mutex_lock(&lock);
        b->next = spare, spare = b;
        pthread_mutex_unlock(&lock);
    }
}

static int listen_to_calls(void);

static void *writer(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "nsysalign");
    uint64_t next = monotonic() + 1000000000u;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        while (!first && pthread_cond_timedwait(&work, &lock, &until) != ETIMEDOUT)
            ;
        int due = monotonic() >= next;
        if (due)
            queue_events();
        pthread_mutex_unlock(&lock);
        if (due) {
            next = monotonic() + 1000000000u;
            /* never forced: what still runs would come with end 0, and not again */
            if (!pthread_mutex_trylock(&calls)) {
                if (recording && !aside && !dead)
                    cupti.flush(0), about_gpus();
                if (recording && !aside && !dead && turns.subscriber && !turns.listens)
                    listen_to_calls();
                if (recording && full)
                    disable_all(), recording = 0;
                pthread_mutex_unlock(&calls);
            }
        }
        write_out();
        prepare_spares();
    }
    return NULL;
}

static void in_child(void) {
    pthread_mutex_init(&lock, NULL), pthread_mutex_init(&file_lock, NULL), pthread_mutex_init(&calls, NULL);
    if (recording || aside || version)
        dead = 1; /* CUDA does not work here either */
    process = getpid();
    file = -1, writing = 0, written = 0, full = over = 0, *problem = 0;
    memset(sizes, 0, sizeof sizes), memset(seen_call, 0, sizeof seen_call), gpus_known = 0;
    /* what waits is the parent's; its names are not in a file of ours */
    first = NULL, last = &first, events = spare = NULL, memset(&texts, 0, sizeof texts);
    names = NULL, kernels = NULL, names_used = kernels_used = 0, numbers = 0;
}

/* Called before anything is recorded: the folder, and what the environment asks for.  0 if there is no folder. */
static int prepare(const char *where) {
    const char *run = getenv("NSYSALIGN_DIR"), *asked = getenv("NSYSALIGN_RECORDER_OPTIONS"), *found;
    if (where)
        snprintf(folder, sizeof folder, "%s", where);
    else if (run && *run)
        snprintf(folder, sizeof folder, "%s/raw", run);
    if (!*folder || dead)
        return 0;
    if (asked && (found = strstr(asked, "buffer=")))
        buffer_size = ((size_t)strtoull(found + 7, NULL, 10) + 4095) & ~(size_t)4095;
    if (asked && (found = strstr(asked, "limit=")))
        limit = strtoull(found + 6, NULL, 10);
    with_nodes = asked && strstr(asked, "nodes");
    with_event_times = asked && strstr(asked, "accurate");
    turns.wanted = asked && strstr(asked, "turns");
    if (buffer_size < 4096)
        buffer_size = 4096;
    process = getpid();
    if (!prepared) {
        prepared = 1;
        pthread_atfork(NULL, NULL, in_child);
    }
    if (!writing) {
        pthread_condattr_t with_clock;
        pthread_condattr_init(&with_clock);
        pthread_condattr_setclock(&with_clock, CLOCK_MONOTONIC);
        pthread_cond_init(&work, &with_clock);
        pthread_t thread;
        sigset_t every, before;
        sigfillset(&every);
        pthread_sigmask(SIG_BLOCK, &every, &before); /* signals are the program's */
        writing = !pthread_create(&thread, NULL, writer, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (writing)
            pthread_detach(thread);
    }
    return writing;
}

/* --- what CUPTI calls */

/* CUPTI knows a buffer by its data alone. */
static struct buffer *held[4096];

static void requested(uint8_t **data, size_t *size, size_t *most) {
    *data = NULL, *size = 0, *most = 0;
    pthread_mutex_lock(&lock);
    struct buffer *b = full || aside ? NULL : fresh('B');
    for (size_t i = 0; b && i < sizeof held / sizeof *held; i++)
        if (!held[i]) {
            held[i] = b, *data = b->data, *size = buffer_size;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int is_cheap(const char *name);

static void note_caller(uint32_t thread) { /* `lock` is held */
    size_t i = 0;
    while (i < callers_known && callers[i] != thread)
        i++;
    if (i == callers_known && i < sizeof callers / sizeof *callers)
        callers[callers_known++] = thread;
}

/* Whether nobody but this thread calls CUDA: CUPTI must not be taken out of the process under another thread's call.
   The threads of torch's autograd work for a thread that waits for them. */
static int calls_alone(void) {
    int alone = 1;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < callers_known; i++) {
        char of[64], name[16] = "";
        snprintf(of, sizeof of, "/proc/self/task/%u/comm", callers[i]);
        FILE *comm = callers[i] == (uint32_t)syscall(SYS_gettid) ? NULL : fopen(of, "re");
        if (!comm) /* it is this one, or has ended */
            continue;
        if (!fgets(name, sizeof name, comm) || strncmp(name, "pt_autograd", 11))
            alone = 0;
        fclose(comm);
    }
    alone &= callers_known < sizeof callers / sizeof *callers;
    pthread_mutex_unlock(&lock);
    return alone;
}

/* Go through the records: sizes, names of kernels and of calls; without those of cheap calls where CUPTI could not leave
   them out itself. */
static size_t looked_through(uint8_t *data, size_t valid) {
    uint8_t *at = NULL, *end = data + valid;
    size_t kept = 0;
    if (cupti.next(data, valid, &at))
        return 0;
    while (at) {
        uint8_t *next = at;
        uint32_t kind, number;
        if (cupti.next(data, valid, &next))
            next = NULL;
        size_t size = (size_t)((next ? next : end) - at);
        memcpy(&kind, at, 4);
        if (next && kind < MOST_KINDS && sizes[kind] != size) {
            uint64_t told = size;
            chunk('S', kind, &told, 8);
            sizes[kind] = size;
        }
        if (kind == KERNEL && size >= NAME_AT + 8) {
            const char *name;
            memcpy(&name, at + NAME_AT, sizeof name);
            uint64_t text = kernel_number(name);
            memcpy(at + NAME_AT, &text, 8);
        }
        int left_out = 0;
        if (kind == RUNTIME || kind == DRIVER) {
            memcpy(&number, at + THREAD_AT, 4);
            note_caller(number);
            memcpy(&number, at + CBID_AT, 4);
            int domain = kind == DRIVER ? 1 : 2;
            if (number < MOST_CALLS) {
                left_out = cheap_call[domain - 1][number];
                const char *name = NULL;
                if (!seen_call[domain - 1][number] && !cupti.call_name(domain, number, &name) && name) {
                    chunk('C', (uint32_t)domain << 24 | number, name, strlen(name));
                    turns.graphs |= strstr(name, "BeginCapture") || (strstr(name, "Graph") && !strstr(name, "Graphics"));
                }
                seen_call[domain - 1][number] = 1;
            }
        }
        if (!left_out) {
            if (data + kept != at)
                memmove(data + kept, at, size);
            kept += size;
            records++;
        }
        at = next;
    }
    return kept;
}

static void completed(void *context, uint32_t stream, uint8_t *data, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i] && held[i]->data == data) {
            struct buffer *b = held[i];
            held[i] = NULL;
            b->valid = valid && !dead ? looked_through(data, valid) : 0;
            *last = b, last = &b->next;
            pthread_cond_signal(&work);
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* --- starting and stopping.  `calls` is held */

/* Calls that do nothing that takes time: in a training step they are more than half of all. */
static int is_cheap(const char *name) {
    static const char *const HEADS[] = {"Get", "PeekAt", "CtxGet", "CtxSet", "CtxPush", "CtxPop", "DeviceGet", "DevicePrimaryCtxGet",
        "KernelGet", "FuncGet", "FuncSet", "PointerGet", "StreamGet", "StreamIsCapturing", "SetDevice",
        "Occupancy", "DriverGet", "RuntimeGet", "ThreadExchange", "LibraryGet", "ModuleGet", NULL};
    const char *rest = strncmp(name, "cuda", 4) ? name + 2 : name + 4;
    if (!strncmp(rest, "FuncGetAttributes", 17) || !strncmp(rest, "GetDeviceProperties", 19))
        return 0; /* they load modules, and ask the driver for much */
    for (int i = 0; HEADS[i]; i++)
        if (!strncmp(rest, HEADS[i], strlen(HEADS[i])))
            return 1;
    return 0;
}

static int leave_out_cheap(void) {
    static uint8_t is[2][MOST_CALLS], known; /* asked once: the names do not change */
    for (int domain = 1; domain <= 2; domain++) {
        int (*api)(uint32_t, uint8_t) = domain == 1 ? cupti.driver_api : cupti.runtime_api;
        const char *name;
        for (uint32_t number = 1; number < MOST_CALLS; number++) {
            name = NULL;
            if (!known)
                is[domain - 1][number] = !cupti.call_name(domain, number, &name) && name && *name && is_cheap(name);
            if (is[domain - 1][number] && (!api || api(number, 0)))
                cheap_call[domain - 1][number] = 1;
        }
    }
    known = 1;
    return 0;
}

static const char *words(int status) {
    const char *text = NULL;
    return cupti.result && !cupti.result(status, &text) && text ? text : "unknown";
}

/* Which calls are going on, and how many began, is counted while CUPTI is here: it must not be taken out of a call of
   another thread. */
static int going_on;
static unsigned begun;
static __thread struct { int session, depth, leaves; } mine;

static int others(void) { return __atomic_load_n(&going_on, __ATOMIC_SEQ_CST) - mine.depth; }

/* Called by CUPTI at the beginning (0) and at the end (1) of each call of the program's. */
static void called(void *unused, int domain, uint32_t number, const uint32_t *site) {
    (void)unused, (void)domain, (void)number;
    if (mine.session != turns.session)
        mine.session = turns.session, mine.depth = 0;
    if (*site == 0) {
        mine.depth++, __atomic_add_fetch(&going_on, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
        return;
    }
    if (mine.leaves && mine.depth == 1 && !others()) {
        mine.leaves = 0;
        turns.resting = !cupti.finalize();
    }
    if (mine.depth) /* else it began before we were here */
        mine.depth--, __atomic_sub_fetch(&going_on, 1, __ATOMIC_SEQ_CST);
}

static void no_more_turns(const char *why) { /* `lock` is not held */
    if (turns.wanted && !turns.over) {
        turns.over = 1;
        if (why != problem)
            snprintf(problem, sizeof problem, "%s", why);
        pthread_mutex_lock(&lock);
        say("%s", why);
        pthread_mutex_unlock(&lock);
    }
}

/* Of a subscriber that was made while CUPTI was loaded (inside cuInit) it forgets what it wants to hear (CUPTI 13.0). */
static int listen_to_calls(void) {
    int status = 0;
    for (int domain = 1; domain <= 2 && !status; domain++)
        status = cupti.enable_domain(1, turns.subscriber, domain);
    turns.listens = 1;
    return status;
}

static void subscribe(void) {
    turns.subscriber = NULL;
    if (!turns.wanted || turns.over)
        return;
    if (version < GRAPHS_FROM || !cupti.finalize || !cupti.subscribe || !cupti.unsubscribe || !cupti.enable_domain) {
        no_more_turns("nothing ran untraced: that needs CUPTI 12.6 or newer");
        return;
    }
    going_on = 0;
    int status = cupti.subscribe(&turns.subscriber, (void *)called, NULL);
    if (!status)
        status = listen_to_calls();
    turns.listens = turns.session > 1; /* else once more, a second later */
    if (status)
        no_more_turns("from here on nothing runs untraced: another tool listens to CUDA's calls");
}

static void unsubscribe(void) {
    if (turns.subscriber)
        cupti.unsubscribe(turns.subscriber);
    turns.subscriber = NULL;
}

/* Whatever fails: 0 and `problem`. */
static int enable(void) {
    int status = cupti.register_clock((void *)monotonic);
    if (!status)
        cupti.thread_ids(1); /* the system's */
    if (!status)
        status = cupti.register_callbacks((void *)requested, (void *)completed);
    if (!status && cupti.event_times)
        cupti.event_times((uint8_t)with_event_times);
    for (int i = 0; i < KINDS_IN_ALL && !status; i++) {
        if (KINDS[i] == GRAPH && (with_nodes || version < GRAPHS_FROM))
            continue;
        status = cupti.enable(KINDS[i]);
        if (status && (KINDS[i] == STREAM || KINDS[i] == CONTEXT || KINDS[i] == OVERHEAD || KINDS[i] == MEMCPY2))
            status = 0; /* helpful, not needed */
    }
    if (status) {
        disable_all();
        snprintf(problem, sizeof problem, "CUPTI %u refuses: %s (%d)", version, words(status), status);
        return 0;
    }
    subscribe();
    return !leave_out_cheap();
}

static int loaded(void *library) {
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *found = dlsym(library, FUNCTIONS[i].name);
        memcpy(FUNCTIONS[i].function, &found, sizeof found);
        if (!found && i < NEEDED) {
            snprintf(problem, sizeof problem, "this libcupti has no %s: CUPTI 11.8 or newer is needed", FUNCTIONS[i].name);
            return 0;
        }
    }
    return !cupti.version(&version) && version;
}

/* With the CUPTI that is loaded already, else the first of these paths that can be loaded. */
static int find_cupti(const char *candidates) {
    static const char *const NAMES[] = {"libcupti.so.13", "libcupti.so.14", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so", NULL};
    void *library = NULL;
    for (int i = 0; NAMES[i] && !library; i++)
        library = dlopen(NAMES[i], RTLD_LAZY | RTLD_NOLOAD);
    char *list = strdup(candidates ? candidates : ""), *rest = NULL;
    for (char *one = strtok_r(list, ":", &rest); one && !library; one = strtok_r(NULL, ":", &rest))
        library = dlopen(one, RTLD_LAZY);
    free(list);
    for (int i = 0; NAMES[i] && !library; i++)
        library = dlopen(NAMES[i], RTLD_LAZY);
    if (!library)
        snprintf(problem, sizeof problem, "no libcupti was found: it comes with torch's wheels for CUDA and with the CUDA toolkit");
    return library && loaded(library);
}

static void say_dropped(void) {
    size_t lost = 0;
    if (cupti.dropped && !cupti.dropped(NULL, 0, &lost) && lost) { /* it counts anew then */
        pthread_mutex_lock(&lock);
        say("CUPTI dropped %zu records", lost);
        pthread_mutex_unlock(&lock);
    }
}

static int finish(int finalize) {
    turns.resting = 0;
    if (!recording || dead || process != getpid())
        return 0;
    about_gpus();
    unsubscribe();
    int status = aside ? 0 : cupti.flush(1);
    if (!aside)
        disable_all(), cupti.flush(1), say_dropped(); /* nothing of ours is left with CUPTI */
    recording = 0;
    if (finalize && cupti.finalize && version >= GRAPHS_FROM && calls_alone())
        status = cupti.finalize();
    callers_known = 0;
    return status;
}

/* --- turns.  `calls` is held */

/* The driver, as far as it is called; an absent function is NULL. */
static struct {
    int (*current)(void **), (*set)(void *), (*synchronize)(void), (*mode)(int *);
    int (*count)(int *), (*state)(int, unsigned *, int *), (*retain)(void **, int), (*release)(int);
} driver;
static void find_driver(void) {
    static const struct { const char *name; void *function; } CALLS[] = {
        {"cuCtxGetCurrent", &driver.current}, {"cuCtxSetCurrent", &driver.set}, {"cuCtxSynchronize", &driver.synchronize},
        {"cuThreadExchangeStreamCaptureMode", &driver.mode}, {"cuDeviceGetCount", &driver.count},
        {"cuDevicePrimaryCtxGetState", &driver.state}, {"cuDevicePrimaryCtxRetain", &driver.retain},
        {"cuDevicePrimaryCtxRelease_v2", &driver.release}};
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; cuda && i < sizeof CALLS / sizeof *CALLS; i++) {
        void *found = dlsym(cuda, CALLS[i].name);
        memcpy(CALLS[i].function, &found, sizeof found);
    }
}

/* Waits for all work of the GPUs, in a thread of its own: a program may have made the GPU wait for the CPU, and then
   nobody but the program may wait for the GPU. */
static int draining; /* 1 it waits, 2 it is done */
static void *drain(void *context) {
    int relaxed = 2, devices = 0;
    if (driver.mode)
        driver.mode(&relaxed); /* another thread's capture is not touched */
    if (context && !driver.set(context))
        driver.synchronize();
    if (driver.count && driver.state && driver.retain && driver.release && !driver.count(&devices))
        for (int device = 0; device < devices; device++) {
            unsigned flags;
            int active = 0;
            void *primary = NULL;
            if (driver.state(device, &flags, &active) || !active || driver.retain(&primary, device))
                continue;
            if (primary != context && !driver.set(primary))
                driver.synchronize();
            driver.set(NULL), driver.release(device);
        }
    __atomic_store_n(&draining, 2, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Whether all GPUs came to rest within so many ns. */
static int drained(uint64_t limit) {
    void *context = NULL;
    pthread_t thread;
    if (!driver.current)
        find_driver();
    if (!driver.current || !driver.set || !driver.synchronize || __atomic_load_n(&draining, __ATOMIC_SEQ_CST) == 1)
        return 0;
    driver.current(&context);
    draining = 1;
    if (pthread_create(&thread, NULL, drain, context)) {
        draining = 0;
        return 0;
    }
    pthread_detach(thread);
    for (uint64_t until = monotonic() + limit; __atomic_load_n(&draining, __ATOMIC_SEQ_CST) == 1 && monotonic() < until;)
        usleep(20);
    return __atomic_load_n(&draining, __ATOMIC_SEQ_CST) == 2;
}

/* A call of another thread must not begin while CUPTI is taken out: some kernels come with impossible times then, and
   once the program ended with a corrupt heap (CUPTI 13.0).  Python's threads wait for the interpreter's lock, which the
   caller of nsysalign_turn holds, after the call that they are about to make; others are heard beforehand. */
static int others_are_quiet(void) {
    for (int n = 0; n < 3; n++) {
        unsigned before = __atomic_load_n(&begun, __ATOMIC_SEQ_CST);
        usleep(QUIET_US);
        if (!others() && __atomic_load_n(&begun, __ATOMIC_SEQ_CST) == before)
            return 1;
    }
    return 0;
}

static void switched(int traced, uint64_t began) {
    uint64_t span[2] = {began, monotonic()};
    write_out(); /* what was recorded before comes before it */
    pthread_mutex_lock(&lock);
    chunk('X', (uint32_t)traced, span, sizeof span);
    pthread_mutex_unlock(&lock);
    write_out();
}

/* Take CUPTI out of the process: from the end of a call of this thread, while no other thread is in one. */
static int leave(void) {
    uint64_t began = monotonic();
    void *context = NULL;
    if (!recording || !turns.listens || !drained(AT_REST_NS) || !others_are_quiet())
        return 0;
    cupti.flush(1);
    if (turns.graphs) {
        /* what it put into a graph stays there: to take it out of the process ends a program that replays the graph (tried) */
        unsubscribe();
        no_more_turns("from here on nothing runs untraced: the program makes CUDA graphs, which cannot be replayed once CUPTI has left");
        return -1;
    }
    disable_all();
    cupti.flush(1);
    /* it is in no call, whatever was told */
    if (mine.session == turns.session)
        __atomic_sub_fetch(&going_on, mine.depth, __ATOMIC_SEQ_CST), mine.depth = 0;
    mine.leaves = 1;
    for (int n = 0; n < 50 && mine.leaves; n++) {
        driver.current(&context);
        if (mine.leaves)
            usleep(100);
    }
    int left = !mine.leaves && turns.resting;
    mine.leaves = 0;
    if (left) {
        turns.subscriber = NULL, recording = 0;
        switched(0, began);
        return 1;
    }
    unsubscribe(); /* others are in calls: as it was */
    recording = enable();
    turns.session++, turns.listens = 1;
    switched(2, began);
    return 0;
}

static int resume(void) {
    uint64_t began = monotonic();
    if (!drained(AT_REST_NS))
        return 0;
    pthread_mutex_lock(&lock); /* what CUPTI still held when it left: it has been away for a turn */
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i])
            held[i]->next = spare, spare = held[i], held[i] = NULL;
    pthread_mutex_unlock(&lock);
    turns.session++;
    turns.resting = 0;
    recording = enable();
    if (recording)
        switched(1, began);
    else
        no_more_turns(problem);
    return recording ? 1 : -1;
}

/* To be called when the program begins to time: the writer may hear other threads' calls up to a second later. */
EXPORT void nsysalign_listen(void) {
    if (!took_calls())
        return;
    if (recording && !aside && !dead && process == getpid() && turns.subscriber && !turns.listens)
        listen_to_calls();
    pthread_mutex_unlock(&calls);
}

/* Whether all GPUs come to rest within a second: before nsysalign_turn, which other threads wait for. */
EXPORT int nsysalign_rest(void) { return drained(1000000000u); }

/* Go on without CUPTI (0) or with it (1), of which the calling thread is in no call: 1 if so; 0: not now, because a
   range is open, the GPU works on, or another thread calls CUDA; -1: no more turns, and nsysalign_problem says why. */
EXPORT int nsysalign_turn(int traced) {
    int status = 0;
    if (!took_calls())
        return 0;
    if (dead || process != getpid() || !turns.wanted || (turns.over && !(traced && turns.resting)))
        status = -1;
    else if (!aside && !turns.ranges_open && traced == turns.resting)
        status = traced ? resume() : leave();
    pthread_mutex_unlock(&calls);
    return status;
}

/* How many buffers CUPTI has. */
EXPORT int nsysalign_held(void) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        count += held[i] != NULL;
    pthread_mutex_unlock(&lock);
    return count;
}

static void at_exit(void) {
    if (dead || process != getpid())
        return;
    if (!pthread_mutex_trylock(&calls)) { /* else somebody stops already, or hangs in CUPTI */
        finish(0);
        pthread_mutex_unlock(&calls);
    }
    pthread_mutex_lock(&lock);
    queue_events();
    pthread_mutex_unlock(&lock);
    write_out();
}

/* 1 if it records from now on (or did before); else 0, and nsysalign_problem says why. */
EXPORT int nsysalign_start(const char *where, const char *candidates) {
    static int registered;
    if (!took_calls())
        return 0;
    if (!recording && prepare(where)) {
        *problem = 0;
        prepare_spares();
        int ready = find_cupti(candidates) && enable();
        recording = ready;
        pthread_mutex_lock(&lock);
        if (ready)
            chunk('V', version, "", 0);
        if (ready && version < GRAPHS_FROM && !with_nodes)
            say("CUDA graphs are in it by their kernels, not as a whole: that needs CUPTI 12.6 or newer");
        pthread_mutex_unlock(&lock);
        if (ready && !registered)
            registered = !atexit(at_exit);
        if (!ready) {
            version = 0; /* a child may try for itself */
            pthread_mutex_lock(&lock);
            chunk('M', 0, problem, strlen(problem));
            pthread_mutex_unlock(&lock);
            write_out();
        }
    } else if (!recording && !*problem)
        snprintf(problem, sizeof problem, dead ? "a child that was forked while its parent recorded cannot use CUPTI" : "it has no folder to write to");
    int status = recording;
    pthread_mutex_unlock(&calls);
    return status;
}

/* All that is known so far is in the file when it returns; `forced`: also what still runs, with end 0. */
EXPORT int nsysalign_flush(int forced) {
    int status = 0;
    if (took_calls()) {
        if (recording && !aside && !dead && process == getpid())
            status = cupti.flush(forced ? 1 : 0);
        pthread_mutex_unlock(&calls);
    }
    pthread_mutex_lock(&lock);
    queue_events();
    pthread_mutex_unlock(&lock);
    write_out();
    return status;
}

/* `finalize`: take CUPTI out of the process, which gives calls their own speed back (CUDA 12.6 or newer), if no other
   thread calls CUDA. */
EXPORT int nsysalign_stop(int finalize) {
    if (!took_calls())
        return -1;
    int status = finish(finalize);
    pthread_mutex_unlock(&calls);
    pthread_mutex_lock(&lock);
    queue_events();
    pthread_mutex_unlock(&lock);
    write_out();
    pthread_mutex_lock(&file_lock);
    if (file >= 0 && process == getpid())
        close(file);
    file = -1, written = 0, full = over = 0, *folder = 0; /* the next start has a file of its own, and says everything again */
    pthread_mutex_unlock(&file_lock);
    pthread_mutex_lock(&lock);
    memset(sizes, 0, sizeof sizes), memset(seen_call, 0, sizeof seen_call), gpus_known = 0;
    for (size_t i = 0; names && i < MOST_NAMES; i++)
        free(names[i].text);
    free(names), free(kernels);
    names = NULL, kernels = NULL, names_used = kernels_used = 0, numbers = 0;
    turns.over = turns.resting = turns.graphs = turns.ranges_open = 0, turns.session++;
    pthread_mutex_unlock(&lock);
    return status;
}

/* Let another user of CUPTI (torch.profiler) have it: 1; take it back: 0. */
EXPORT int nsysalign_aside(int away) {
    int status = 1;
    if (!took_calls())
        return 0;
    if (!dead && process == getpid() && turns.resting) { /* it is away already */
        aside = away;
        no_more_turns("from here on nothing runs untraced: torch.profiler listens to CUDA's calls");
    } else if (recording && !dead && process == getpid()) {
        if (away && !aside) {
            unsubscribe();
            no_more_turns("from here on nothing runs untraced: torch.profiler listens to CUDA's calls");
            say_dropped();
            aside = 1; /* from here on CUPTI gets no buffer of ours: one that it kept would take the other's records */
            disable_all();
            cupti.flush(1);
            cupti.register_clock((void *)realtime);
        } else if (!away && aside) {
            size_t meanwhile; /* which is not in the recording anyway */
            if (cupti.dropped)
                cupti.dropped(NULL, 0, &meanwhile);
            aside = 0;
            status = recording = enable();
            if (!recording) {
                pthread_mutex_lock(&lock);
                chunk('M', 0, problem, strlen(problem));
                pthread_mutex_unlock(&lock);
            }
        }
    }
    pthread_mutex_unlock(&calls);
    return status;
}

/* "" while all is well. */
EXPORT const char *nsysalign_problem(void) { return problem; }
EXPORT uint32_t nsysalign_cupti_version(void) { return version; }
EXPORT uint64_t nsysalign_records(void) { return records; }

/* Called by the driver in cuInit. */
EXPORT int InitializeInjection(void) {
    nsysalign_start(NULL, getenv("NSYSALIGN_CUPTI"));
    return 1;
}

/* --- NVTX (v3: nvtxDetail/nvtxTypes.h of https://github.com/NVIDIA/NVTX), where the functions are asked for */

struct text { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color; int32_t payload_type, reserved; uint64_t payload; int32_t type, pad; const void *message; };

static void narrow(char *out, size_t size, const wchar_t *text) { /* UTF-32 to UTF-8 */
    size_t n = 0;
    for (; text && *text && n + 5 < size; text++) {
        uint32_t c = (uint32_t)*text;
        if (c < 0x80)
            out[n++] = (char)c;
        else if (c < 0x800)
            out[n++] = (char)(0xC0 | c >> 6), out[n++] = (char)(0x80 | (c & 63));
        else if (c < 0x10000)
            out[n++] = (char)(0xE0 | c >> 12), out[n++] = (char)(0x80 | (c >> 6 & 63)), out[n++] = (char)(0x80 | (c & 63));
        else
            out[n++] = (char)(0xF0 | (c >> 18 & 7)), out[n++] = (char)(0x80 | (c >> 12 & 63)), out[n++] = (char)(0x80 | (c >> 6 & 63)), out[n++] = (char)(0x80 | (c & 63));
    }
    out[n] = 0;
}

static uint32_t thread_id(void) {
    static __thread struct { pid_t process; uint32_t id; } mine;
    if (mine.process != process)
        mine.process = process, mine.id = (uint32_t)syscall(SYS_gettid);
    return mine.id;
}

static void event(uint32_t what, uint64_t ns, uint64_t a, uint64_t b) { /* `lock` is held */
    if (dead || full || !*folder || (!events && !(events = fresh('N'))))
        return;
    if (!writing) /* a forked child */
        prepare(NULL);
    struct nvtx one = {what, thread_id(), ns, a, b};
    memcpy(events->data + events->valid, &one, sizeof one);
    events->valid += sizeof one;
    if (events->valid + sizeof one > buffer_size) {
        queue_events();
        pthread_cond_signal(&work);
    }
}

static uint64_t number_of(const struct text *t) { /* `lock` is held */
    char wide[2000];
    if (!t || !t->message)
        return 0;
    if (t->type == 3)
        return ((const struct name *)t->message)->number ? named(((const struct name *)t->message)->text, 0)->number : 0;
    if (t->type == 2)
        narrow(wide, sizeof wide, t->message);
    return t->type == 1 ? named(t->message, 0)->number : t->type == 2 ? named(wide, 0)->number : 0;
}

static uint64_t begin(uint64_t domain, const struct text *t, int started) {
    pthread_mutex_lock(&lock);
    uint64_t number = number_of(t), id = started ? ++ranges : domain;
    event(started ? 3 : 1, monotonic(), number, id);
    turns.ranges_open++;
    pthread_mutex_unlock(&lock);
    return id;
}
static void end(uint32_t what, uint64_t id) {
    uint64_t now = monotonic();
    pthread_mutex_lock(&lock);
    event(what, now, 0, id);
    turns.ranges_open -= turns.ranges_open > 0;
    pthread_mutex_unlock(&lock);
}

static int push_ex(const struct text *t) { begin(0, t, 0); return 0; }
static int push_a(const char *m) { struct text t = {.type = 1, .message = m}; begin(0, &t, 0); return 0; }
static int push_w(const wchar_t *m) { struct text t = {.type = 2, .message = m}; begin(0, &t, 0); return 0; }
static int pop(void) { end(2, 0); return 0; }
static uint64_t start_ex(const struct text *t) { return begin(0, t, 1); }
static uint64_t start_a(const char *m) { struct text t = {.type = 1, .message = m}; return begin(0, &t, 1); }
static uint64_t start_w(const wchar_t *m) { struct text t = {.type = 2, .message = m}; return begin(0, &t, 1); }
static void end_range(uint64_t id) { end(4, id); }
static uint64_t domain_start(void *d, const struct text *t) { (void)d; return begin(0, t, 1); }
static void domain_end(void *d, uint64_t id) { (void)d; end(4, id); }
static int domain_push(void *d, const struct text *t) { begin((uint64_t)(uintptr_t)d, t, 0); return 0; }
static int domain_pop(void *d) { end(2, (uint64_t)(uintptr_t)d); return 0; }
static void domain_mark(void *d, const struct text *t) { (void)d, (void)t; }
/* A handle outlives the tables of names: a copy of its own. */
static void *registered(const char *text) {
    struct name *own = malloc(sizeof *own);
    if (own && (own->text = strdup(text)))
        own->number = 1;
    return own;
}
static void *register_a(void *d, const char *m) { (void)d; return registered(m ? m : ""); }
static void *register_w(void *d, const wchar_t *m) {
    char wide[2000];
    (void)d;
    narrow(wide, sizeof wide, m);
    return registered(wide);
}
static void *create_a(const char *name) { return registered(name ? name : ""); }
static void *create_w(const wchar_t *name) { return register_w(NULL, name); }

struct callbacks { size_t size; int (*table)(int, void ****, unsigned *); };

EXPORT int InitializeInjectionNvtx2(const void *(*export)(uint32_t)) {
    static void *const CORE[16] = {[4] = start_ex, [5] = start_a, [6] = start_w, [7] = end_range, [8] = push_ex, [9] = push_a, [10] = push_w, [11] = pop};
    static void *const CORE2[16] = {[1] = domain_mark, [2] = domain_start, [3] = domain_end, [4] = domain_push, [5] = domain_pop,
        [10] = register_a, [11] = register_w, [12] = create_a, [13] = create_w};
    static int registered_once;
    const struct callbacks *callbacks = export(1);
    if (!took_calls())
        return 0;
    int ready = callbacks && prepare(NULL);
    if (ready && !registered_once)
        registered_once = !atexit(at_exit);
    pthread_mutex_unlock(&calls);
    for (int module = 1; ready && module <= 5; module += 4) {
        void *const *ours = module == 1 ? CORE : CORE2;
        void ***table;
        unsigned size = 0;
        if (callbacks->table(module, &table, &size))
            for (unsigned i = 1; i < size && i < 16; i++)
                if (ours[i] && table[i])
                    *table[i] = ours[i];
    }
    return ready;
}

/* The payload extension of NVTX: NCCL leaves the range of its initialisation by it. */
enum { PAYLOAD = 2, PUSH_PAYLOAD = 3, POP_PAYLOAD, START_PAYLOAD, END_PAYLOAD };
struct segment { size_t id, size; void **slots; };
struct extension { uint16_t version, size, module, compatible; size_t count; struct segment *segments; };

/* The message of a range that is opened so is within its payload: it has no name here. */
static int push_payload(void *d, const void *data, size_t count) { (void)data, (void)count; return domain_push(d, NULL); }
static int pop_payload(void *d, const void *data, size_t count) { (void)data, (void)count; return domain_pop(d); }
static uint64_t start_payload(void *d, const void *data, size_t count) { (void)data, (void)count; return domain_start(d, NULL); }
static void end_payload(void *d, uint64_t id, const void *data, size_t count) { (void)data, (void)count; domain_end(d, id); }

EXPORT int InitializeInjectionNvtxExtension(struct extension *asked) {
    static void *const OURS[] = {[PUSH_PAYLOAD] = push_payload, [POP_PAYLOAD] = pop_payload,
        [START_PAYLOAD] = start_payload, [END_PAYLOAD] = end_payload};
    if (!prepared || asked->module != PAYLOAD || !asked->count)
        return 0;
    for (size_t i = PUSH_PAYLOAD; i <= END_PAYLOAD && i < asked->segments[0].size; i++)
        asked->segments[0].slots[i] = OURS[i];
    return 1;
}
