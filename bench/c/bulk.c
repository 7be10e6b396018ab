/* 64 MiB at a time by a link over shared memory, from one process into another: what bench/peers/python.py does from Python.
 * Prints Gbyte/s. usage: bulk ROUNDS */
#define _GNU_SOURCE
#include <madrigal.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BULK = 64 << 20 };

static void must(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", mdg_error_text());
        exit(1);
    }
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static char *memory(void)
{
    char *bytes = malloc(BULK);
    must(bytes != NULL);
    memset(bytes, 0, BULK);
    return bytes;
}

static void send_bulk(const char *address, int rounds)
{
    char byte, *data = memory();
    mdg_runtime runtime;
    mdg_link link;
    must(mdg_runtime_open(&runtime) == 0);
    must(mdg_connect(runtime, address, MDG_FOREVER, &link) == 0);
    for (; rounds > 0; rounds--) {
        must(mdg_read(link, &byte, 1, MDG_FOREVER) == 1);
        must(mdg_write(link, data, BULK, MDG_FOREVER) == BULK);
    }
    mdg_read(link, &byte, 1, MDG_FOREVER);
}

int main(int argc, char **argv)
{
    int round, rounds = argc > 1 ? atoi(argv[1]) : 20;
    char address[64], go, *room;
    double began;
    int told[2];
    pid_t child;
    mdg_runtime runtime;
    mdg_acceptor acceptor;
    mdg_link link;
    snprintf(address, sizeof address, "shm://bench-bulk-%d", (int)getpid());
    must(pipe(told) == 0);
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        must(read(told[0], &go, 1) == 1);
        send_bulk(address, rounds);
        _exit(0);
    }
    room = memory();
    must(mdg_runtime_open(&runtime) == 0);
    must(mdg_listen(runtime, address, &acceptor) == 0);
    must(write(told[1], "!", 1) == 1);
    must(mdg_accept(acceptor, MDG_FOREVER, &link) == 0);
    began = now();
    for (round = 0; round < rounds; round++) {
        int64_t got, done = 0;
        must(mdg_write(link, "!", 1, MDG_FOREVER) == 1);
        for (; done < BULK; done += got) {
            got = mdg_read(link, room + done, (size_t)(BULK - done), MDG_FOREVER);
            must(got > 0);
        }
    }
    printf("%f\n", (double)BULK * rounds / (now() - began) / 1e9);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
