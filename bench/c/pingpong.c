/* One-way latency over shared memory from C, in nanoseconds: what `madrigal perf vlink` and `madrigal perf circuit` measure by the Rust API,
 * in as many rounds, each link's with one of its own, for where its memory lies in the cache decides much. Prints the median of the rounds.
 * usage: pingpong vlink|circuit SIZE ITERATIONS */
#define _GNU_SOURCE
#include <madrigal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 25, MOST = 1 << 16, LATE_EVERY = 64 };
/* A round ends after this time, even if not all its exchanges were done. */
static const double ROUND_NS = 200e6;

static size_t size;
static char out[MOST], back[MOST];

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

static void send_link(mdg_handle link)
{
    must(mdg_write(link, out, size, MDG_FOREVER) == (int64_t)size);
}

static void receive_link(mdg_handle link)
{
    size_t done = 0;
    while (done < size) {
        int64_t got = mdg_read(link, back + done, size - done, MDG_FOREVER);
        must(got > 0);
        done += (size_t)got;
    }
}

/* To the other of two. */
static int other;

static void send_circuit(mdg_handle circuit)
{
    mdg_packing message;
    must(mdg_begin_packing(circuit, other, 0, &message) == 0 && mdg_pack(message, out, size, MDG_CHEAPER) == 0);
    must(mdg_end_packing(message) == 0);
}

static void receive_circuit(mdg_handle circuit)
{
    mdg_unpacking message;
    must(mdg_begin_unpacking(circuit, MDG_ANY, 0, 0, MDG_FOREVER, &message) == 0);
    must(mdg_unpack(message, back, size, MDG_CHEAPER) == 0 && mdg_end_unpacking(message) == 0);
}

/* A way to send and to receive. */
struct way {
    void (*send)(mdg_handle);
    void (*receive)(mdg_handle);
};

/* The first byte says which exchange is the last; the one that is not timed is for the other end to come to this round. */
static double asked(struct way way, mdg_handle over, unsigned iterations)
{
    double begun = 0;
    unsigned done = 0;
    out[0] = 0;
    way.send(over), way.receive(over);
    begun = now_ns();
    while (!out[0]) {
        done++;
        out[0] = done >= iterations || (done % LATE_EVERY == 0 && now_ns() > begun + ROUND_NS);
        way.send(over), way.receive(over);
    }
    return (now_ns() - begun) / (2.0 * done);
}

static void answered(struct way way, mdg_handle over)
{
    do {
        way.receive(over);
        way.send(over);
    } while (!back[0]);
}

static void links(mdg_runtime runtime, int is_asker, mdg_handle all[ROUNDS])
{
    char name[64];
    int round;
    mdg_acceptor acceptor;
    snprintf(name, sizeof name, "shm://c-pingpong-%d", (int)(is_asker ? getpid() : getppid()));
    if (is_asker)
        must(mdg_listen(runtime, name, &acceptor) == 0);
    for (round = 0; round < ROUNDS; round++) {
        /* Links need not arrive in the order they were made: each says which round it is for. */
        unsigned char its = (unsigned char)round;
        mdg_link link = 0;
        int code = MDG_EREFUSED;
        if (is_asker) {
            must(mdg_accept(acceptor, MDG_FOREVER, &link) == 0 && mdg_read(link, &its, 1, MDG_FOREVER) == 1 && its < ROUNDS);
        } else {
            while ((code = mdg_connect(runtime, name, MDG_FOREVER, &link)) == MDG_EREFUSED)
                usleep(1000);
            must(code == 0 && mdg_write(link, &its, 1, MDG_FOREVER) == 1);
        }
        all[its] = link;
    }
}

static void circuit(mdg_runtime runtime, int is_asker, int socket, mdg_handle all[ROUNDS])
{
    char addresses[2][MDG_ADDRESS];
    int me = is_asker ? 0 : 1, round;
    other = 1 - me;
    must(mdg_circuit_open(runtime, 0, &all[0]) == 0 && mdg_circuit_address(all[0], addresses[me]) == 0);
    if (write(socket, addresses[me], MDG_ADDRESS) != MDG_ADDRESS || read(socket, addresses[other], MDG_ADDRESS) != MDG_ADDRESS)
        exit(1);
    must(mdg_circuit_join(all[0], addresses, 2) == me);
    for (round = 1; round < ROUNDS; round++)
        all[round] = all[0];
}

static int ascending(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

int main(int argc, char **argv)
{
    static const struct way by_link = {send_link, receive_link}, by_circuit = {send_circuit, receive_circuit};
    double each[ROUNDS];
    mdg_handle all[ROUNDS];
    int round, is_link, is_asker, ends[2];
    unsigned iterations;
    mdg_runtime runtime;
    pid_t child;

    if (argc != 4 || (size = strtoul(argv[2], NULL, 10)) == 0 || size > MOST || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 2;
    is_link = strcmp(argv[1], "vlink") == 0;
    iterations = (unsigned)strtoul(argv[3], NULL, 10);
    /* Before Madrigal is used a process may fork. */
    child = fork();
    is_asker = child != 0;
    if (!is_asker)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(mdg_runtime_open(&runtime) == 0);
    if (is_link)
        links(runtime, is_asker, all);
    else
        circuit(runtime, is_asker, ends[!is_asker], all);
    for (round = 0; round < ROUNDS; round++) {
        if (is_asker)
            each[round] = asked(is_link ? by_link : by_circuit, all[round], iterations);
        else
            answered(is_link ? by_link : by_circuit, all[round]);
    }
    must(mdg_close(runtime) == 0);
    if (!is_asker)
        return 0;
    waitpid(child, NULL, 0);
    qsort(each, ROUNDS, sizeof each[0], ascending);
    printf("%.1f\n", each[ROUNDS / 2]);
    return 0;
}
