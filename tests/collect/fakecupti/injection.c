/* Stands in for nsys's injection library: when it is ended, as at an exit in order, that is one byte in the same file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((destructor)) static void end(void) {
    char name[4096];
    snprintf(name, sizeof name, "%s/flushed-%d", getenv("FAKE_CUPTI"), (int)getpid());
    int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(file, "e", 1) != 1)
        abort();
    close(file);
    if (getenv("FAKE_NSYS_CRASHES"))
        *(volatile int *)8 = 1;
}
