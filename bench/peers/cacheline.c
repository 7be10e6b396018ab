// One cache line handed to and fro between two pinned CPUs, nothing else: prints one way in nanoseconds (median of batches).
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCHES = 51, TRIPS = 20000 };
static _Alignas(128) int line;
static int cpus[2];

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *partner(void *unused) {
    pin(cpus[1]);
    for (;;) {
        int seen;
        while (!((seen = __atomic_load_n(&line, __ATOMIC_ACQUIRE)) & 1)) {}
        if (seen < 0) return unused;
        __atomic_store_n(&line, seen + 1, __ATOMIC_RELEASE);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 3) return 1;
    cpus[0] = atoi(argv[1]);
    cpus[1] = atoi(argv[2]);
    pthread_t other;
    pthread_create(&other, 0, partner, 0);
    pin(cpus[0]);
    double batches[BATCHES];
    int at = 0;
    for (int b = 0; b < BATCHES; b++) {
        struct timespec s, e;
        clock_gettime(CLOCK_MONOTONIC, &s);
        for (int i = 0; i < TRIPS; i++) {
            __atomic_store_n(&line, at + 1, __ATOMIC_RELEASE);
            while (__atomic_load_n(&line, __ATOMIC_ACQUIRE) != at + 2) {}
            at += 2;
        }
        clock_gettime(CLOCK_MONOTONIC, &e);
        batches[b] = ((e.tv_sec - s.tv_sec) * 1e9 + (e.tv_nsec - s.tv_nsec)) / TRIPS / 2;
    }
    __atomic_store_n(&line, -1, __ATOMIC_RELEASE);
    pthread_join(other, 0);
    qsort(batches, BATCHES, sizeof *batches, ascending);
    printf("%.1f\n", batches[BATCHES / 2]);
    return 0;
}
