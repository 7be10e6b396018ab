/* One-way latency of 8 bytes over shared memory from C, in nanoseconds: the figure that `cargo run --release --example pingpong -p madrigal`
 * gives for the Rust API. Prints the best of ten runs. usage: pingpong [SIZE] */
#define _GNU_SOURCE
#include <madrigal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 10, ROUNDS = 50000, MOST = 1 << 16 };

static void must(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", mdg_error_text());
        exit(1);
    }
}

static void read_all(mdg_link link, char *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        int64_t got = mdg_read(link, buf + done, len - done, MDG_FOREVER);
        must(got > 0);
        done += (size_t)got;
    }
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    static char buf[MOST];
    size_t size = argc > 1 ? strtoul(argv[1], NULL, 10) : 8;
    char name[64];
    double best = 0;
    int run, round;
    mdg_runtime runtime;
    mdg_acceptor acceptor;
    mdg_link link;
    pid_t child;

    if (size == 0 || size > MOST)
        return 2;
    snprintf(name, sizeof name, "shm://c-pingpong-%d", (int)getpid());
    child = fork();
    must(mdg_runtime_open(&runtime) == 0);
    if (child == 0) {
        while (mdg_connect(runtime, name, MDG_FOREVER, &link) == MDG_EREFUSED)
            usleep(1000);
        for (;;) {
            int64_t got = mdg_read(link, buf, size, MDG_FOREVER);
            if (got <= 0)
                return 0;
            must(mdg_write(link, buf, (size_t)got, MDG_FOREVER) == got);
        }
    }
    must(mdg_listen(runtime, name, &acceptor) == 0);
    must(mdg_accept(acceptor, MDG_FOREVER, &link) == 0);
    for (run = 0; run < RUNS; run++) {
        double began = now_ns(), each;
        for (round = 0; round < ROUNDS; round++) {
            must(mdg_write(link, buf, size, MDG_FOREVER) == (int64_t)size);
            read_all(link, buf, size);
        }
        each = (now_ns() - began) / ROUNDS / 2;
        if (run == 0 || each < best)
            best = each;
    }
    printf("c shm %zu bytes: %.0f ns one way\n", size, best);
    must(mdg_close(runtime) == 0);
    waitpid(child, NULL, 0);
    return 0;
}
