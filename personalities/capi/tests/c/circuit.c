/* A Circuit among four processes: every pair of modes, sizes below and above what travels alone, every byte compared; tags out of order;
 * two Circuits at a time; threads; a node that dies. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NODES = 4, MOST = 1 << 20, LONG = 200000 };

static mdg_runtime runtime;
static int rank;
/* To the process of rank 0 from each, and back. */
static int up[NODES][2], down[NODES][2];

static void transfer(int fd, void *buf, size_t len, int out)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = out ? write(fd, (char *)buf + done, len - done) : read(fd, (char *)buf + done, len - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

/* Everybody opens a Circuit, and all learn of all addresses. */
static mdg_circuit joined(uint32_t flags)
{
    char all[NODES][MDG_ADDRESS], own[MDG_ADDRESS];
    mdg_circuit circuit;
    mdg_packing none;
    int node;
    CHECK(mdg_circuit_open(runtime, flags, &circuit) == 0);
    CHECK(mdg_circuit_address(circuit, own) == 0);
    if (rank == 0) {
        memcpy(all[0], own, sizeof own);
        for (node = 1; node < NODES; node++)
            transfer(up[node][0], all[node], MDG_ADDRESS, 0);
        for (node = 1; node < NODES; node++)
            transfer(down[node][1], all, sizeof all, 1);
    } else {
        transfer(up[rank][1], own, sizeof own, 1);
        transfer(down[rank][0], all, sizeof all, 0);
    }
    CHECK(mdg_begin_packing(circuit, 0, 0, &none) == MDG_EBUSY);
    CHECK(mdg_flush(circuit, 0) == MDG_EBUSY);
    CHECK(mdg_circuit_join(circuit, all, 0) == MDG_ERANK);
    CHECK(mdg_circuit_join(circuit, all, NODES) == rank);
    CHECK(mdg_circuit_join(circuit, all, NODES) == MDG_EBUSY);
    return circuit;
}

struct head {
    uint64_t len;
    int32_t send_mode, receive_mode;
};

/* A head that says what follows, the bytes, a byte behind them. */
static void send_one(mdg_circuit circuit, int to, uint64_t tag, size_t len, int mode, int receive_mode, unsigned seed)
{
    static unsigned char bytes[MOST + 1];
    struct head head;
    unsigned char last = (unsigned char)(seed + 1);
    mdg_packing packing;
    head.len = len;
    head.send_mode = mode;
    head.receive_mode = receive_mode;
    CHECK(mdg_begin_packing(circuit, to, tag, &packing) == 0);
    CHECK(mdg_pack(packing, &head, sizeof head, MDG_SAFER) == 0);
    memset(&head, 0xee, sizeof head);
    /* As far as the mode allows, the bytes are not what they are to be, before or after. */
    if (mode == MDG_LATER)
        memset(bytes, 0x11, len);
    else
        fill(bytes, len, seed);
    CHECK(mdg_pack(packing, bytes, len, mode) == 0);
    if (mode == MDG_SAFER)
        memset(bytes, 0x22, len);
    if (mode == MDG_LATER)
        fill(bytes, len, seed);
    CHECK(mdg_pack(packing, &last, 1, MDG_CHEAPER) == 0);
    CHECK(mdg_end_packing(packing) == 0);
    CHECK(mdg_end_packing(packing) == MDG_EHANDLE);
    memset(bytes, 0x33, len);
}

static size_t receive_one(mdg_circuit circuit, int from, uint64_t tag, unsigned seed)
{
    static unsigned char bytes[MOST + 1];
    struct head head;
    unsigned char last = 0;
    mdg_unpacking unpacking;
    int sender = -5;
    uint64_t its = 0;
    CHECK(mdg_begin_unpacking(circuit, from, tag, 0, 60 * SECOND, &unpacking) == 0);
    CHECK(mdg_sender(unpacking, &sender, &its) == 0 && mdg_sender(unpacking, NULL, NULL) == 0);
    CHECK((from == MDG_ANY || sender == from) && its == tag);
    CHECK(mdg_unpack(unpacking, &head, sizeof head, MDG_EXPRESS) == 0);
    CHECK(head.len <= MOST);
    memset(bytes, 0x44, head.len);
    CHECK(mdg_unpack(unpacking, bytes, head.len, head.receive_mode) == 0);
    if (head.receive_mode == MDG_EXPRESS)
        CHECK(is_filled(bytes, head.len, seed));
    CHECK(mdg_unpack(unpacking, &last, 1, MDG_CHEAPER) == 0);
    CHECK(mdg_end_unpacking(unpacking) == 0 && mdg_end_unpacking(unpacking) == MDG_EHANDLE);
    CHECK(is_filled(bytes, head.len, seed) && last == (unsigned char)(seed + 1));
    return head.len;
}

/* Rank 0 asks every other node, with every pair of modes; each answers with the same bytes. */
static void ping_pong(mdg_circuit circuit)
{
    static const size_t sizes[] = {0, 1, 8, 100, 4096, 4097, 70000, MOST};
    static const int sends[] = {MDG_SAFER, MDG_LATER, MDG_CHEAPER}, receives[] = {MDG_EXPRESS, MDG_CHEAPER};
    size_t size;
    int s, r, node;
    for (size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
        for (s = 0; s < 3; s++)
            for (r = 0; r < 2; r++)
                for (node = 1; node < NODES; node++) {
                    unsigned seed = (unsigned)(size * 97 + (size_t)(s * 7 + r * 3 + node));
                    if (rank == 0) {
                        send_one(circuit, node, 0, sizes[size], sends[s], receives[r], seed);
                        CHECK(receive_one(circuit, node, 0, seed) == sizes[size]);
                    } else if (rank == node) {
                        CHECK(receive_one(circuit, 0, 0, seed) == sizes[size]);
                        send_one(circuit, 0, 0, sizes[size], sends[s], receives[r], seed);
                    }
                }
}

/* Messages of several tags from everybody, taken in another order than they were sent. */
static void tags(mdg_circuit circuit)
{
    mdg_unpacking unpacking;
    int from, node;
    uint64_t tag;
    for (node = 0; node < NODES; node++)
        for (tag = 1; tag <= 3; tag++)
            send_one(circuit, node, tag << 60 | 5, 64 * tag, MDG_SAFER, MDG_EXPRESS, (unsigned)(rank * 10) + (unsigned)tag);
    for (tag = 3; tag >= 1; tag--)
        for (from = NODES - 1; from >= 0; from--)
            CHECK(receive_one(circuit, from, tag << 60 | 5, (unsigned)(from * 10) + (unsigned)tag) == 64 * tag);
    CHECK(mdg_begin_unpacking(circuit, MDG_ANY, 0x99, 0, 0, &unpacking) == MDG_ETIMEDOUT);
    CHECK(mdg_begin_unpacking(circuit, rank, 0x99, 0xf0, 2000000, &unpacking) == MDG_ETIMEDOUT);
    /* Of two tags that differ in bits that do not count, the first one. */
    if (rank == 0) {
        send_one(circuit, 1, 0x17, 9, MDG_SAFER, MDG_CHEAPER, 1);
        send_one(circuit, 1, 0x18, 10, MDG_SAFER, MDG_CHEAPER, 2);
    } else if (rank == 1) {
        struct head head;
        CHECK(mdg_begin_unpacking(circuit, MDG_ANY, 0x10, 0x0f, 60 * SECOND, &unpacking) == 0);
        CHECK(mdg_sender(unpacking, &from, &tag) == 0 && from == 0 && tag == 0x17);
        CHECK(mdg_unpack(unpacking, &head, sizeof head, MDG_EXPRESS) == 0 && head.len == 9);
        /* Not unpacked to its end: the rest of it is thrown away. */
        CHECK(mdg_close(unpacking) == 0);
        CHECK(receive_one(circuit, 0, 0x18, 2) == 10);
    }
}

struct job {
    mdg_circuit circuit;
    int with, first;
};

static void *both(void *user)
{
    unsigned char *out = (unsigned char *)malloc(LONG), *in = (unsigned char *)malloc(LONG);
    const struct job *job = (const struct job *)user;
    uint64_t round;
    for (round = 0; round < 20; round++) {
        size_t len = round % 2 == 0 ? LONG : 500;
        uint64_t tag = (uint64_t)job->first << 32 | round;
        mdg_packing packing;
        mdg_unpacking unpacking;
        fill(out, len, (unsigned)tag);
        if (job->first == rank % 2) {
            CHECK(mdg_begin_packing(job->circuit, job->with, tag, &packing) == 0);
            CHECK(mdg_pack(packing, out, len, MDG_CHEAPER) == 0 && mdg_end_packing(packing) == 0);
        }
        CHECK(mdg_begin_unpacking(job->circuit, job->with, tag, 0, 60 * SECOND, &unpacking) == 0);
        CHECK(mdg_unpack(unpacking, in, len, MDG_CHEAPER) == 0 && mdg_end_unpacking(unpacking) == 0);
        CHECK(is_filled(in, len, (unsigned)tag));
        if (job->first != rank % 2) {
            CHECK(mdg_begin_packing(job->circuit, job->with, tag, &packing) == 0);
            CHECK(mdg_pack(packing, in, len, MDG_SAFER) == 0 && mdg_end_packing(packing) == 0);
        }
    }
    free(out);
    free(in);
    return NULL;
}

/* Two threads in each process, each waiting for what only the other process's threads can send, with long pieces both ways. */
static void threads(mdg_circuit circuit)
{
    pthread_t thread[2];
    struct job jobs[2];
    int at;
    for (at = 0; at < 2; at++) {
        jobs[at].circuit = circuit;
        jobs[at].with = rank ^ 1;
        jobs[at].first = at;
        CHECK(pthread_create(&thread[at], NULL, both, &jobs[at]) == 0);
    }
    for (at = 0; at < 2; at++)
        CHECK(pthread_join(thread[at], NULL) == 0);
}

static void mismatched(mdg_circuit circuit)
{
    char buf[64];
    mdg_packing packing;
    mdg_unpacking unpacking;
    CHECK(mdg_begin_packing(circuit, NODES, 0, &packing) == MDG_ERANK && mdg_begin_packing(circuit, -1, 0, &packing) == MDG_ERANK);
    CHECK(mdg_begin_packing(circuit, 0, 1, &packing) == MDG_EINVAL);
    CHECK(mdg_begin_packing(circuit, rank, 0, &packing) == 0);
    CHECK(mdg_pack(packing, "twelve bytes", 12, MDG_EXPRESS) == MDG_EINVAL);
    CHECK(mdg_pack(packing, "twelve bytes", 12, MDG_SAFER) == 0 && mdg_end_packing(packing) == 0);
    CHECK(mdg_begin_unpacking(circuit, NODES, 0, 0, 0, &unpacking) == MDG_ERANK);
    CHECK(mdg_begin_unpacking(circuit, rank, 0, 0, 60 * SECOND, &unpacking) == 0);
    CHECK(mdg_unpack(unpacking, buf, 5, MDG_LATER) == MDG_EINVAL);
    CHECK(mdg_unpack(unpacking, buf, 5, MDG_CHEAPER) == 0 && mdg_end_unpacking(unpacking) == MDG_EMISMATCH);
    CHECK(strstr(mdg_error_text(), "12 bytes, 5 were asked for") != NULL);
}

/* The last node dies: who waits for it learns of it, the others go on. */
static void lost(mdg_circuit circuit)
{
    char byte;
    mdg_unpacking unpacking;
    if (rank == NODES - 1) {
        transfer(down[rank][0], &byte, 1, 0);
        raise(SIGKILL);
    }
    if (rank == 0) {
        transfer(down[NODES - 1][1], &byte, 1, 1);
        CHECK(mdg_begin_unpacking(circuit, NODES - 1, 0, 0, 60 * SECOND, &unpacking) == MDG_ELOST);
        CHECK(strstr(mdg_error_text(), "node 3 is lost") != NULL);
        send_one(circuit, 1, 0, 1000, MDG_CHEAPER, MDG_CHEAPER, 77);
    } else if (rank == 1) {
        CHECK(receive_one(circuit, 0, 0, 77) == 1000);
    }
}

/* A first message leaves though its sender does not come back to Madrigal before it has arrived. */
static void flushed(mdg_circuit circuit)
{
    char byte = 0;
    if (rank == 1) {
        send_one(circuit, 0, 0, 100, MDG_SAFER, MDG_CHEAPER, 11);
        CHECK(mdg_flush(circuit, -7) == MDG_EINVAL);
        CHECK(mdg_flush(circuit, 60 * SECOND) == 0);
        transfer(down[1][0], &byte, 1, 0);
    } else if (rank == 0) {
        CHECK(receive_one(circuit, 1, 0, 11) == 100);
        transfer(down[1][1], &byte, 1, 1);
    }
}

static void work(void)
{
    char why[8192];
    mdg_circuit plain, tagged;
    CHECK(mdg_runtime_open(&runtime) == 0);
    plain = joined(0);
    flushed(plain);
    tagged = joined(MDG_TAGS);
    ping_pong(plain);
    tags(tagged);
    threads(tagged);
    mismatched(plain);
    CHECK(mdg_why(plain, why, sizeof why) < (int64_t)sizeof why && strstr(why, "\"kind\":\"circuit\"") != NULL);
    if (rank == 0)
        printf("%s\n", why);
    lost(plain);
    CHECK(mdg_close(tagged) == 0 && mdg_close(plain) == 0);
    CHECK(mdg_close(runtime) == 0);
}

int main(void)
{
    pid_t children[NODES];
    int node, status;
    for (node = 1; node < NODES; node++)
        CHECK(pipe(up[node]) == 0 && pipe(down[node]) == 0);
    for (node = 1; node < NODES; node++) {
        children[node] = fork();
        CHECK(children[node] >= 0);
        if (children[node] == 0) {
            rank = node;
            work();
            _exit(0);
        }
    }
    work();
    for (node = 1; node < NODES; node++) {
        CHECK(waitpid(children[node], &status, 0) == children[node]);
        if (node < NODES - 1)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    puts("good");
    return 0;
}
