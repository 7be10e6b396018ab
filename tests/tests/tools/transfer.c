// A server and a client that send each other bytes anybody can compute, and check every one that comes.
//
//   transfer serve DIR    listens on a port of its own, writes it to DIR/port, and serves one connection
//   transfer call DIR     connects to that port
//   transfer both DIR     both in one process, which also hands a pointer over from thread to thread, by the connection
//   transfer overflow DIR writes where it may not, for a tool to find
//
// First small requests and answers (the server waits by epoll, and forks once), then a bulk both ways at once, each end with a thread that sends and one
// that receives. Whoever is done writes its process, what it saw and the time to DIR/ROLE.done, keeps its connection until DIR/go exists, and ends with 0.
// TRANSFER_BYTES: how many bytes of bulk each way.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 300, SMALL = 3000, PIECE = 40000 };
static const char *dir;
static long bulk = 4 << 20;

static char *path(char *room, size_t size, const char *name) {
    snprintf(room, size, "%s/%s", dir, name);
    return room;
}

static void await(const char *name) {
    char wanted[512];
    struct stat ignored;
    path(wanted, sizeof wanted, name);
    struct timespec step = {0, 5000000};
    while (stat(wanted, &ignored)) nanosleep(&step, NULL);
}

// Its connection stays for whoever wants to know why.
static void fail(int status) {
    char name[512], number[32];
    snprintf(number, sizeof number, "failed.%d", getpid());
    FILE *file = fopen(path(name, sizeof name, number), "w");
    if (file) fclose(file);
    await("go");
    _exit(status);
}

static void die(const char *what) {
    fprintf(stderr, "transfer: %s: %s\n", what, strerror(errno));
    fail(3);
}

// Made whole under another name first: who finds the file finds all of it.
static void tell(const char *name, const char *text) {
    char made[512], wanted[512];
    snprintf(made, sizeof made, "%s/%s.new", dir, name);
    FILE *file = fopen(made, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) die(made);
    if (rename(made, path(wanted, sizeof wanted, name))) die(wanted);
}

// What is sent: each stream has a seed, and a byte depends on that and its place.
static unsigned char expected(uint32_t seed, long at) {
    uint32_t x = seed + (uint32_t)(at >> 2) * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (unsigned char)(x >> 8 * (at & 3));
}

static void fill(unsigned char *to, uint32_t seed, long at, long count) {
    for (long i = 0; i < count; i++) to[i] = expected(seed, at + i);
}

static uint64_t check(const unsigned char *got, uint32_t seed, long at, long count, uint64_t sum) {
    for (long i = 0; i < count; i++) {
        if (got[i] != expected(seed, at + i)) {
            fprintf(stderr, "transfer: byte %ld of stream %u differs\n", at + i, seed);
            fail(4);
        }
        sum = (sum ^ got[i]) * 1099511628211u;
    }
    return sum;
}

// Several calls that send and receive take turns.
static ssize_t some_out(int fd, unsigned char *from, size_t count, long turn) {
    struct iovec parts[2] = {{from, count / 2}, {from + count / 2, count - count / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (turn % 4) {
    case 0: return write(fd, from, count);
    case 1: return send(fd, from, count, MSG_NOSIGNAL);
    case 2: return writev(fd, parts, 2);
    default: return sendmsg(fd, &message, MSG_NOSIGNAL);
    }
}

static ssize_t some_in(int fd, unsigned char *to, size_t count, long turn) {
    struct iovec parts[2] = {{to, count / 2}, {to + count / 2, count - count / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (turn % 4) {
    case 0: return read(fd, to, count);
    case 1: return recv(fd, to, count, 0);
    case 2: return readv(fd, parts, 2);
    default: return recvmsg(fd, &message, 0);
    }
}

static void all_out(int fd, unsigned char *from, long count, long turn) {
    for (long done = 0; done < count;) {
        ssize_t n = some_out(fd, from + done, count - done, turn);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("send");
        done += n;
    }
}

static void all_in(int fd, int set, unsigned char *to, long count, long turn) {
    for (long done = 0; done < count;) {
        struct epoll_event event;
        if (set >= 0 && epoll_wait(set, &event, 1, -1) < 1) {
            if (errno == EINTR) continue;
            die("epoll_wait");
        }
        ssize_t n = some_in(fd, to + done, count - done, turn);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("receive");
        done += n;
    }
}

struct end {
    int fd, is_server;
    uint64_t sum;
};

static long round_size(long round) { return 1 + round * 37 % SMALL; }

// A child that holds the connection for a moment, and leaves it alone.
static void have_child(void) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) die("fork");
}

static void rounds(struct end *end) {
    unsigned char bytes[SMALL];
    int set = -1;
    if (end->is_server) {
        struct epoll_event event = {.events = EPOLLIN};
        set = epoll_create1(0);
        if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event)) die("epoll");
    }
    for (long round = 0; round < ROUNDS; round++) {
        if (end->is_server && round == ROUNDS / 2) have_child();
        long size = round_size(round);
        if (end->is_server) {
            all_in(end->fd, set, bytes, size, round);
            end->sum = check(bytes, 1, round, size, end->sum);
            fill(bytes, 2, round, size);
            all_out(end->fd, bytes, size, round);
        } else {
            fill(bytes, 1, round, size);
            all_out(end->fd, bytes, size, round);
            all_in(end->fd, set, bytes, size, round);
            end->sum = check(bytes, 2, round, size, end->sum);
        }
    }
    if (set >= 0) close(set);
}

static void *send_bulk(void *of) {
    struct end *end = of;
    unsigned char *bytes = malloc(PIECE);
    for (long at = 0, turn = 0; at < bulk; turn++) {
        long size = 1 + (turn * 7919) % PIECE;
        if (size > bulk - at) size = bulk - at;
        fill(bytes, 3 + end->is_server, at, size);
        all_out(end->fd, bytes, size, turn);
        at += size;
    }
    free(bytes);
    return NULL;
}

static void receive_bulk(struct end *end) {
    unsigned char *bytes = malloc(PIECE);
    for (long at = 0, turn = 0; at < bulk; turn++) {
        long size = bulk - at < PIECE ? bulk - at : PIECE;
        ssize_t n = some_in(end->fd, bytes, size, turn);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("receive");
        end->sum = check(bytes, 3 + !end->is_server, at, n, end->sum);
        at += n;
    }
    free(bytes);
}

static void converse(struct end *end) {
    pthread_t sender;
    rounds(end);
    if (pthread_create(&sender, NULL, send_bulk, end)) die("pthread_create");
    receive_bulk(end);
    pthread_join(sender, NULL);
}

static int listener(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&address, size) || listen(fd, 5) || getsockname(fd, (void *)&address, &size)) die("listen");
    char text[16];
    snprintf(text, sizeof text, "%d", ntohs(address.sin_port));
    tell("port", text);
    return fd;
}

static int caller(void) {
    char name[512];
    int port = 0;
    await("port");
    FILE *file = fopen(path(name, sizeof name, "port"), "r");
    if (!file || fscanf(file, "%d", &port) != 1) die("port");
    fclose(file);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (void *)&address, sizeof address)) die("connect");
    return fd;
}

static void finish(const char *role, struct end *end) {
    char text[128], name[32];
    snprintf(text, sizeof text, "%d %016llx %ld\n", getpid(), (unsigned long long)end->sum, (long)time(NULL));
    snprintf(name, sizeof name, "%s.done", role);
    tell(name, text);
    await("go");
    close(end->fd);
}

static void *serve(void *ignored) {
    (void)ignored;
    int listening = listener(), fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) die("accept");
    struct end end = {.fd = fd, .is_server = 1};
    converse(&end);
    finish("serve", &end);
    close(listening);
    return NULL;
}

static void *call(void *ignored) {
    (void)ignored;
    struct end end = {.fd = caller()};
    converse(&end);
    finish("call", &end);
    return NULL;
}

// One thread writes memory and tells another by the connection alone that it is there.
static int ends[2];

static void *receive_boxes(void *ignored) {
    (void)ignored;
    for (int i = 0; i < 300; i++) {
        int *got = NULL;
        all_in(ends[1], -1, (void *)&got, sizeof got, i);
        if (*got != i) die("box");
        free(got);
        all_out(ends[1], (void *)"!", 1, i);
    }
    return NULL;
}

static void boxes(void) {
    unsigned char answer;
    int listening = listener();
    pthread_t reader;
    ends[0] = caller();
    ends[1] = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (pthread_create(&reader, NULL, receive_boxes, NULL)) die("pthread_create");
    for (int i = 0; i < 300; i++) {
        int *box = malloc(sizeof *box);
        *box = i;
        all_out(ends[0], (void *)&box, sizeof box, i);
        all_in(ends[0], -1, &answer, 1, i);
    }
    pthread_join(reader, NULL);
    close(ends[0]);
    close(ends[1]);
    close(listening);
    char name[512];
    unlink(path(name, sizeof name, "port"));
}

int main(int count, char **words) {
    if (count != 3) return 2;
    dir = words[2];
    if (getenv("TRANSFER_BYTES")) bulk = atol(getenv("TRANSFER_BYTES"));
    if (!strcmp(words[1], "serve")) serve(NULL);
    if (!strcmp(words[1], "call")) call(NULL);
    if (!strcmp(words[1], "overflow")) {
        volatile char *bytes = malloc(SMALL);
        bytes[SMALL + count - 3] = 1;
        free((void *)bytes);
    }
    if (!strcmp(words[1], "both")) {
        pthread_t server;
        boxes();
        if (pthread_create(&server, NULL, serve, NULL)) die("pthread_create");
        call(NULL);
        pthread_join(server, NULL);
    }
    return 0;
}
