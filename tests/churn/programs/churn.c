/* Churn in C: threads, each call of the C library that carries bytes in turn. See ../README.md for what goes over the wire.
 *   churn server PORT BESIDE
 *   churn client PORT THREADS REQUESTS SIZE END SECONDS BESIDE SEED */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD = 65521, CHUNK = 65536, PATIENCE = 20, STACK = 256 * 1024 };
enum { CLOSE, LINGER0, HALF, KILL };
static const char *const ends[] = {"close", "linger0", "half", "kill"};

static unsigned char table[PERIOD + CHUNK];
static atomic_ulong connections, bytes;
static atomic_bool over;
static int port, threads, requests, end;
static uint32_t size, seed;
static const char *beside;

static void say(const char *format, ...) {
    char line[200];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    line[length] = '\n';
    if (write(1, line, length + 1) < 0)
        _exit(3);
}

static uint32_t mix(uint32_t x) {
    x *= 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static uint32_t size_of(uint32_t id, uint32_t k, uint32_t most) {
    uint32_t h = mix(id + k * 40503u), limit = h % 8 == 0 ? most : most / 50;
    return 1 + h / 8 % (limit ? limit : 1);
}

static const unsigned char *content(uint32_t id, int direction, uint64_t position) {
    return table + (mix((id * 2 + direction) ^ 0x9e3779b9u) % PERIOD + position) % PERIOD;
}

/* What failed, with the right word in front: a time-out is told apart from other errors. */
static bool bad(const char *where, uint32_t id) {
    say(errno == EAGAIN ? "timeout %s of connection %u" : "error %s of connection %u: %s", where, id, strerror(errno));
    return false;
}

static bool put(int fd, uint32_t id, int direction, uint64_t position, uint32_t length, bool may_break) {
    while (length) {
        uint32_t part = length < CHUNK ? length : CHUNK;
        const unsigned char *from = content(id, direction, position);
        struct iovec two[2] = {{(void *)from, part / 2}, {(void *)(from + part / 2), part - part / 2}};
        struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
        ssize_t done;
        switch (id % 4) {
        case 0: done = send(fd, from, part, MSG_NOSIGNAL); break;
        case 1: done = write(fd, from, part); break;
        case 2: done = sendmsg(fd, &message, MSG_NOSIGNAL); break;
        default: done = writev(fd, two, 2);
        }
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return may_break && errno != EAGAIN ? false : bad("send", id);
        position += done;
        length -= done;
    }
    return true;
}

/* Receives up to so many bytes; 0 at the end, -1 after an error. */
static ssize_t some(int fd, uint32_t id, unsigned char *to, size_t length) {
    struct iovec two[2] = {{to, length / 2}, {to + length / 2, length - length / 2}};
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
    struct pollfd ready = {fd, POLLIN, 0};
    for (;;) {
        ssize_t done;
        switch (id / 4 % 4) {
        case 0: done = recv(fd, to, length, 0); break;
        case 1: done = read(fd, to, length); break;
        case 2: done = recvmsg(fd, &message, 0); break;
        default:
            if (poll(&ready, 1, PATIENCE * 1000) == 0) {
                errno = EAGAIN;
                return -1;
            }
            done = readv(fd, two, 2);
        }
        if (done >= 0 || errno != EINTR)
            return done;
    }
}

/* How far ahead of their place these bytes belong, by what they are (the content repeats: less than a period); -1: nowhere in this stream. */
static long ahead(const unsigned char *bytes, size_t count, const unsigned char *right) {
    for (long by = 1; count >= 8 && by < PERIOD; by++)
        if (!memcmp(bytes, table + (right - table + by) % PERIOD, count))
            return by;
    return -1;
}

/* Says which bytes of a receive are wrong, and where they should be. */
static void tell_wrong(const unsigned char *buffer, const unsigned char *right, ssize_t done, uint64_t position, uint32_t id) {
    ssize_t first = done, last = 0, wrong = 0;
    for (ssize_t i = 0; i < done; i++) {
        if (buffer[i] != right[i]) {
            first = first < done ? first : i;
            last = i + 1;
            wrong++;
        }
    }
    size_t part = last - first < 16 ? last - first : 16;
    say("wrong %zd bytes from position %llu of connection %u: %zd to %zd of a receive of %zd; %ld and %ld ahead", wrong,
        (unsigned long long)(position + first), id, first, last, done, ahead(buffer + first, part, right + first),
        ahead(buffer + last - part, part, right + last - part));
}

/* Receives and checks `length` bytes. 1: done; 0: the end came first, before a byte of it; -1: anything else, which is told. */
static int take(int fd, uint32_t id, int direction, uint64_t position, uint32_t length, unsigned char *buffer, bool may_break) {
    for (uint32_t got = 0; got < length;) {
        ssize_t done = some(fd, id, buffer, length - got < CHUNK ? length - got : CHUNK);
        if (done < 0) {
            if (!may_break || errno == EAGAIN)
                bad("receive", id);
            return -1;
        }
        if (done == 0) {
            if (got && !may_break)
                say("error the end came %u bytes into %u of connection %u", got, length, id);
            return got ? -1 : 0;
        }
        const unsigned char *right = content(id, direction, position + got);
        if (memcmp(buffer, right, done))
            tell_wrong(buffer, right, done, position + got, id);
        got += done;
    }
    return 1;
}

static void prepare(int fd) {
    int one = 1;
    struct timeval patience = {PATIENCE, 0};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

static bool whole(int fd, unsigned char *to, size_t length) {
    size_t got = 0;
    while (got < length) {
        ssize_t done = recv(fd, to + got, length - got, 0);
        /* With SO_RCVTIMEO, also by a signal without a handler, such as a child's end, which came while its parent blocked it. */
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno != ECONNRESET)
            return bad("receive of the greeting", 0);
        if (done <= 0)
            return false;
        got += done;
    }
    return true;
}

static void *serve(void *argument) {
    int fd = (long)argument;
    unsigned char *buffer = malloc(CHUNK);
    uint32_t hello[4];
    if (!whole(fd, (void *)hello, sizeof hello))
        goto out;
    uint32_t id = ntohl(hello[1]), most = ntohl(hello[2]), how = ntohl(hello[3]);
    if (memcmp(hello, "MCHN", 4)) {
        say("wrong 16 bytes of a greeting");
        goto out;
    }
    bool may_break = how == LINGER0 || how == KILL;
    uint64_t position = 0;
    for (uint32_t k = 0;; k++) {
        uint32_t length = size_of(id, k, most);
        int done = take(fd, id, 0, position, length, buffer, may_break);
        if (done == 0 && how == HALF)
            put(fd, id, 1, position, size_of(id, 65535, most), false);
        if (done != 1 || !put(fd, id, 1, position, length, may_break))
            break;
        position += length;
    }
out:
    close(fd);
    free(buffer);
    return NULL;
}

static void start(void *(*run)(void *), long argument, pthread_t *thread) {
    pthread_attr_t small;
    pthread_t own;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK);
    if (!thread)
        pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    if (pthread_create(thread ? thread : &own, &small, run, (void *)argument))
        say("error no thread: %s", strerror(errno));
    pthread_attr_destroy(&small);
}

static void *fork_beside(void *unused) {
    extern char **environ;
    char *words[] = {"/bin/true", NULL};
    while (!over) {
        pid_t child = -1;
        if (!strcmp(beside, "spawn")) {
            if (posix_spawn(&child, words[0], NULL, NULL, words, environ))
                say("error no child");
        } else if ((child = fork()) == 0) {
            _exit(0);
        }
        if (child > 0)
            waitpid(child, NULL, 0);
        usleep(rand() % 20000);
    }
    return unused;
}

static struct sockaddr_in address(void) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int server(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in own = address();
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&own, sizeof own) || listen(listener, 1000)) {
        say("error bind: %s", strerror(errno));
        return 1;
    }
    say("ready");
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EINTR)
                say("error accept: %s", strerror(errno));
            continue;
        }
        prepare(fd);
        start(serve, fd, NULL);
    }
}

static bool connection(uint32_t id, unsigned char *buffer) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in peer = address();
    if (connect(fd, (void *)&peer, sizeof peer)) {
        /* All ports are in use for a moment, or the listener's queue is full. */
        if (errno != EADDRNOTAVAIL && errno != ETIMEDOUT)
            bad("connect", id);
        close(fd);
        usleep(10000);
        return false;
    }
    prepare(fd);
    connections++;
    uint32_t hello[4] = {0, htonl(id), htonl(size), htonl(end)};
    memcpy(hello, "MCHN", 4);
    bool good = send(fd, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello || bad("send", id);
    uint64_t position = 0;
    for (int k = 0; good && k < requests && !over; k++) {
        uint32_t length = size_of(id, k, size);
        int done = put(fd, id, 0, position, length, false) ? take(fd, id, 1, position, length, buffer, false) : -1;
        if (done == 0)
            say("error the end came in place of an answer of connection %u", id);
        good = done == 1;
        position += length;
        bytes += 2 * (good ? length : 0);
    }
    if (good && end == HALF) {
        unsigned char more;
        shutdown(fd, SHUT_WR);
        if (take(fd, id, 1, position, size_of(id, 65535, size), buffer, false) == 0)
            say("error nothing came after the half close of connection %u", id);
        else if (some(fd, id, &more, 1) != 0)
            say("error no end after the half close of connection %u", id);
    }
    if (end == LINGER0) {
        struct linger now = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    close(fd);
    return good;
}

static void *churn(void *argument) {
    unsigned char *buffer = malloc(CHUNK);
    for (uint32_t number = 0; !over; number++)
        connection(seed + (uint32_t)(long)argument * 1000003u + number, buffer);
    free(buffer);
    return NULL;
}

static int client(int seconds) {
    pthread_t all[threads];
    for (int i = 0; i < threads; i++)
        start(churn, i, &all[i]);
    if (strcmp(beside, "none"))
        start(fork_beside, 0, NULL);
    for (int i = 0; i < seconds * 10; i++) {
        usleep(100000);
        say("progress %lu %lu", (unsigned long)connections, (unsigned long)bytes);
    }
    over = true;
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    say("done %lu %lu", (unsigned long)connections, (unsigned long)bytes);
    return 0;
}

int main(int count, char **words) {
    uint32_t x = 12345;
    for (int i = 0; i < PERIOD; i++) {
        x = (x * 1103515245u + 12345u) & 0x7fffffff;
        table[i] = x >> 16;
    }
    for (int i = 0; i < CHUNK; i++)
        table[PERIOD + i] = table[i];
    signal(SIGPIPE, SIG_IGN);
    port = atoi(words[2]);
    if (!strcmp(words[1], "server")) {
        beside = words[3];
        if (strcmp(beside, "none"))
            start(fork_beside, 0, NULL);
        return server();
    }
    if (count < 10)
        return 2;
    threads = atoi(words[3]);
    requests = atoi(words[4]);
    size = strtoul(words[5], NULL, 10);
    while (strcmp(words[6], ends[end]))
        end++;
    beside = words[8];
    seed = strtoul(words[9], NULL, 10);
    return client(atoi(words[7]));
}
