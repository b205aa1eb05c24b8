/* Stands in for nsys's CUPTI library: each flush is one byte in a file, written without a buffer of its own. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuptiActivityFlushAll(uint32_t flag) {
    char name[4096];
    const char *hang = getenv("FAKE_CUPTI_HANGS"), *slow = getenv("FAKE_CUPTI_SLOW");
    snprintf(name, sizeof name, "%s/flushed-%d", getenv("FAKE_CUPTI"), (int)getpid());
    int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    ssize_t written = write(file, flag ? "1" : "0", 1);
    close(file);
    while (hang)
        sleep(100);
    if (slow)
        usleep(700000);
    return written != 1;
}

/* A call that does not come back and keeps whatever the caller holds. */
void hang(void) {
    for (;;)
        pause();
}

void hang_and_say(void) {
    if (write(1, "1\n", 2) == 2)
        hang();
}

int overflow(int n) {
    volatile char frame[4096];
    frame[n % 4096] = 1;
    return overflow(n + 1) + frame[n % 4096];
}
