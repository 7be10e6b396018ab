/* What a message of 8 bytes costs in one thread that has both ends, in nanoseconds: sending it and receiving it, by a link over shared memory,
 * or by a Circuit, which the loopback driver carries in one process. The least of many short rounds, so that a busy machine matters little. crates/madrigal/examples/one_thread.rs is the same by the Rust API.
 * usage: one_thread vlink|circuit ROUNDS */
#define _GNU_SOURCE
#include <madrigal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Messages of a round: less than a time slice. */
enum { SIZE = 8, MESSAGES = 1000 };

static char out[SIZE] = {1}, back[SIZE];
static mdg_handle near_end, far_end;
static int have_met;

static void must(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", mdg_error_text());
        exit(1);
    }
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void by_link(void)
{
    must(mdg_write(near_end, out, SIZE, MDG_FOREVER) == SIZE);
    must(mdg_read(far_end, back, SIZE, MDG_FOREVER) == SIZE);
}

static void by_circuit(void)
{
    mdg_packing packing;
    mdg_unpacking unpacking;
    must(mdg_begin_packing(near_end, 1, 0, &packing) == 0 && mdg_pack(packing, out, SIZE, MDG_CHEAPER) == 0);
    must(mdg_end_packing(packing) == 0);
    /* The first time they meet, for which both must look. */
    while (mdg_begin_unpacking(far_end, MDG_ANY, 0, 0, have_met ? MDG_FOREVER : 0, &unpacking) != 0)
        must(mdg_begin_unpacking(near_end, MDG_ANY, 0, 0, 0, &unpacking) == MDG_ETIMEDOUT);
    have_met = 1;
    must(mdg_unpack(unpacking, back, SIZE, MDG_CHEAPER) == 0 && mdg_end_unpacking(unpacking) == 0);
}

static void make_link(mdg_runtime runtime)
{
    char name[64];
    mdg_acceptor acceptor;
    snprintf(name, sizeof name, "shm://c-one-thread-%d", (int)getpid());
    must(mdg_listen(runtime, name, &acceptor) == 0 && mdg_connect(runtime, name, MDG_FOREVER, &near_end) == 0);
    must(mdg_accept(acceptor, MDG_FOREVER, &far_end) == 0);
}

/* Two runtimes, so that there are two workers. */
static void make_circuit(mdg_runtime runtime)
{
    char addresses[2][MDG_ADDRESS];
    mdg_runtime other;
    must(mdg_runtime_open(&other) == 0);
    must(mdg_circuit_open(runtime, 0, &near_end) == 0 && mdg_circuit_open(other, 0, &far_end) == 0);
    must(mdg_circuit_address(near_end, addresses[0]) == 0 && mdg_circuit_address(far_end, addresses[1]) == 0);
    must(mdg_circuit_join(near_end, addresses, 2) == 0 && mdg_circuit_join(far_end, addresses, 2) == 1);
}

int main(int argc, char **argv)
{
    double least = 1e18;
    long round, rounds;
    int message, is_link;
    mdg_runtime runtime;
    if (argc != 3)
        return 2;
    is_link = strcmp(argv[1], "vlink") == 0;
    rounds = strtol(argv[2], NULL, 10);
    must(mdg_runtime_open(&runtime) == 0);
    if (is_link)
        make_link(runtime);
    else
        make_circuit(runtime);
    for (round = 0; round < rounds; round++) {
        double began = now_ns(), each;
        for (message = 0; message < MESSAGES; message++)
            if (is_link)
                by_link();
            else
                by_circuit();
        each = (now_ns() - began) / MESSAGES;
        if (each < least)
            least = each;
    }
    printf("%.1f\n", least);
    return 0;
}
