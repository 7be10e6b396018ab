/* The MPI test bed in one program: `bed NAME ARGUMENTS` runs one test; rank 0 prints `ok NAME ...` at its end. */
#include "bed.h"

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

int rank, ranks, inherited;

static const struct {
    const char *name;
    void (*run)(int, char **);
} tests[] = {
    {"ring", test_ring},           {"exchange", test_exchange}, {"storm", test_storm},       {"mixed", test_mixed},
    {"probe", test_probe},         {"cancel", test_cancel},     {"truncate", test_truncate}, {"self", test_self},
    {"threads", test_threads},     {"colls", test_colls},       {"comms", test_comms},       {"allreduce", test_allreduce},
    {"win", test_win},             {"fence", test_fence},       {"pingpong", test_pingpong}, {"bandwidth", test_bandwidth},
    {"rate", test_rate},           {"idle", test_idle},         {"kill", test_kill},         {"sockets", test_sockets},
    {"late", test_late},           {"brief", test_brief},       {"why", test_why},           {"jobs", test_jobs},
    {"early", test_early},         {"cut", test_cut},           {"flood", test_flood},       {"exports", test_exports},
    {"expired", test_expired},
};

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAILED rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, 3);
    _exit(3);
}

uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void fill(void *data, size_t length, uint64_t seed) {
    unsigned char *at = data;
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        if (i % 8 == 0)
            word = draw(&seed);
        at[i] = (unsigned char)(word >> (8 * (i % 8)));
    }
}

void expect(const void *data, size_t length, uint64_t seed, const char *what) {
    const unsigned char *at = data;
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        if (i % 8 == 0)
            word = draw(&seed);
        if (at[i] != (unsigned char)(word >> (8 * (i % 8))))
            fail("%s: byte %zu of %zu is %u instead of %u", what, i, length, at[i], (unsigned char)(word >> (8 * (i % 8))));
    }
}

size_t some_length(uint64_t *state, size_t most) {
    static const size_t limits[] = {0, 8, 64, 200, 1024, 9000, 17000, 70000, 300000, 2 << 20};
    size_t limit = limits[draw(state) % (sizeof limits / sizeof *limits)];
    if (limit > most)
        limit = most;
    return draw(state) % 3 == 0 ? limit : draw(state) % (limit + 1);
}

void *must_alloc(size_t length) {
    void *data = malloc(length ? length : 1);
    CHECK(data, "no memory for %zu bytes", length);
    return data;
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

long argument(char **arguments, int index, long other) {
    for (int i = 0; i < index; i++)
        if (!arguments[i])
            return other;
    return arguments[index] ? atol(arguments[index]) : other;
}

/* Which provider of libfabric is loaded as a file of its own, for who wants to know what carried the messages. */
static void print_providers(void) {
    char line[4096], seen[4096] = "";
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *name = strrchr(line, '/');
        if (!name || !strstr(name, "-fi.so"))
            continue;
        name[strcspn(name, "\n")] = 0;
        if (!strstr(seen, name) && strlen(seen) + strlen(name) < sizeof seen)
            strcat(seen, name);
    }
    if (maps)
        fclose(maps);
    printf("loaded %s\n", *seen ? seen : "-");
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    int threads = strcmp(name, "threads") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, granted;
    inherited = connections();
    MPI_Init_thread(&count, &arguments, threads, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strcmp(name, tests[i].name))
            continue;
        if (granted < threads) {
            if (rank == 0)
                printf("skipped %s: this MPI has no MPI_THREAD_MULTIPLE here\n", name);
        } else {
            tests[i].run(count - 1, arguments + 1);
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0) {
                print_providers();
                printf("ok %s %d\n", name, ranks);
            }
        }
        MPI_Finalize();
        return 0;
    }
    fail("no such test: %s", name);
}
