// What the calls of an event loop cost, in one thread that has both ends of some connections: no other processor, and no wait, takes part.
// Prints the least time of many batches, in ns: of a send and a receive; of an epoll_ctl(2); of a send, its share of an epoll_wait(2) and
// a receive; of a receive that finds nothing. usage: calls BATCHES
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS = 50, ROUNDS = 100, WARM = 3000, KINDS = 4, SIZE = 40, ROOM = 16384 };

static int out[PAIRS], in[PAIRS], set;
static char bytes[ROOM];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void connect_all(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, size) || listen(listener, PAIRS) || getsockname(listener, (void *)&name, &size)) fail("listen");
    set = epoll_create1(0);
    for (int i = 0; i < PAIRS; i++) {
        out[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(out[i], (void *)&name, size) || (in[i] = accept(listener, NULL, NULL)) < 0) fail("connect");
        fcntl(out[i], F_SETFL, O_NONBLOCK), fcntl(in[i], F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(set, EPOLL_CTL_ADD, in[i], &event)) fail("epoll_ctl");
    }
}

static void pass(int from, int to) {
    if (write(from, bytes, SIZE) != SIZE) fail("write");
    ssize_t n;
    while ((n = read(to, bytes, ROOM)) < 0 && errno == EAGAIN) {}
    if (n != SIZE) fail("read");
}

static void ask(int i, unsigned events) {
    struct epoll_event event = {.events = events, .data.u32 = i};
    if (epoll_ctl(set, EPOLL_CTL_MOD, in[i], &event)) fail("epoll_ctl");
}

static void round_of(int kind, int number) {
    if (kind == 1)
        for (int i = 0; i < PAIRS; i++) ask(i, number & 1 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    else if (kind == 3)
        for (int i = 0; i < PAIRS; i++)
            if (read(in[i], bytes, ROOM) >= 0 || errno != EAGAIN) fail("read of nothing");
    if (kind == 0)
        for (int i = 0; i < PAIRS; i++) pass(out[i], in[i]);
    if (kind != 2) return;
    for (int i = 0; i < PAIRS; i++)
        if (write(out[i], bytes, SIZE) != SIZE) fail("write");
    for (int got = 0; got < PAIRS;) {
        struct epoll_event ready[PAIRS];
        int n = epoll_wait(set, ready, PAIRS, -1);
        for (int j = 0; j < n; j++) got += read(in[ready[j].data.u32], bytes, ROOM) == SIZE;
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
    double least[KINDS] = {1e9, 1e9, 1e9, 1e9};
    connect_all();
    for (int round = 0; round < WARM; round++)
        for (int i = 0; i < PAIRS; i++) pass(out[i], in[i]), pass(in[i], out[i]);
    for (int batch = argc > 1 ? atoi(argv[1]) : 100; batch > 0; batch--)
        for (int kind = 0; kind < KINDS; kind++) {
            double begin = now();
            for (int round = 0; round < ROUNDS; round++) round_of(kind, round);
            double each = (now() - begin) / (ROUNDS * PAIRS);
            if (kind == 1) for (int i = 0; i < PAIRS; i++) ask(i, EPOLLIN);
            if (each < least[kind]) least[kind] = each;
        }
    for (int kind = 0; kind < KINDS; kind++) printf("%.1f\n", least[kind]);
    return 0;
}
