/* Stands in for nsys's injection library: it fills NVTX's functions with one that does nothing, and when it is ended, as at an
   exit in order, that is one byte in a file. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t nothing(void) { return 1; }

typedef void *(*get_export)(uint32_t);
struct callbacks {
    size_t size;
    int (*get_table)(int, void ****, unsigned *);
};

int InitializeInjectionNvtx2(get_export export) {
    struct callbacks *callbacks = export(1);
    void ***table;
    unsigned size;
    if (!callbacks->get_table(5, &table, &size))
        return 0;
    for (unsigned i = 1; i < size; i++)
        *table[i] = (void *)nothing;
    return 1;
}

__attribute__((destructor)) static void end(void) {
    char name[4096];
    snprintf(name, sizeof name, "%s/ended-%d", getenv("FAKE_NVTX"), (int)getpid());
    int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(file, "e", 1) != 1)
        abort();
    close(file);
    while (getenv("FAKE_NVTX_HANGS"))
        pause();
    if (getenv("FAKE_NVTX_CRASHES"))
        *(volatile int *)8 = 1;
}

/* A call that does not come back and keeps whatever the caller holds. */
void hang(void) {
    for (;;)
        pause();
}
