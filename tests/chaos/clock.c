/* A wall clock that jumps: what it says is the system's plus the seconds that stand in the file of STOKER_TESTS_CLOCK.
   Loaded by LD_PRELOAD. Clocks that only grow are the system's own, as they are when an operator sets the time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t zero = 0;
static volatile int64_t *offset_s = &zero;
static int (*system_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    system_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("STOKER_TESTS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        offset_s = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!system_clock)
        begin();
    int result = system_clock(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return result;
}

time_t time(time_t *where) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (where)
        *where = at.tv_sec;
    return at.tv_sec;
}
