// Load for memcached: some connections in one epoll loop, one request in flight on each, nine gets to one set, 1,000 keys of 100
// bytes; prints requests per second. With a fourth argument, `tails`: how long requests took instead, in us: the 99th and the 99.9th
// of a hundred.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 1000, VALUE = 100, ROOM = 512, STEPS = 1 << 20, STEPS_PER_US = 10 };

struct conn {
    int fd, is_set;
    unsigned seed;
    size_t got;
    double asked;
    char in[ROOM];
};

// How many requests took so many tenths of a microsecond; the last one counts all longer ones.
static unsigned took[STEPS];
static int tails;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void ask(struct conn *c, int is_set, int key) {
    static char value[VALUE + 1];
    memset(value, 'v', VALUE);
    char out[ROOM];
    int n = is_set ? snprintf(out, sizeof out, "set key:%d 0 0 %d\r\n%s\r\n", key, VALUE, value)
                   : snprintf(out, sizeof out, "get key:%d\r\n", key);
    c->is_set = is_set;
    c->got = 0;
    if (tails) c->asked = now();
    if (write(c->fd, out, n) != n) exit(2);
}

static int answered(struct conn *c) {
    ssize_t n = read(c->fd, c->in + c->got, ROOM - c->got);
    if (n <= 0) exit(3);
    c->got += n;
    const char *end = c->is_set ? "STORED\r\n" : "END\r\n";
    size_t len = strlen(end);
    if (c->got < len || memcmp(c->in + c->got - len, end, len)) return 0;
    if (!c->is_set && (c->got < VALUE || memcmp(c->in, "VALUE ", 6))) exit(4);
    return 1;
}

static void note(const struct conn *c) {
    double steps = (now() - c->asked) * 1e6 * STEPS_PER_US;
    took[steps < STEPS - 1 ? (int)steps : STEPS - 1]++;
}

// The time that this share of all requests did not exceed.
static double within(double share, long all) {
    long left = all * share;
    int step = 0;
    while (step < STEPS - 1 && (left -= took[step]) > 0) step++;
    return (step + 1.0) / STEPS_PER_US;
}

int main(int argc, char **argv) {
    if (argc < 4) return 1;
    int wants_tails = argc > 4 && !strcmp(argv[4], "tails");
    int count = atoi(argv[2]), one = 1, set = epoll_create1(0);
    struct conn *conns = calloc(count, sizeof *conns);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < count; i++) {
        struct conn *c = &conns[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        c->seed = i + 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) {
            perror("connect");
            return 1;
        }
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &e);
    }
    for (int key = 0; key < KEYS; key++) {
        ask(conns, 1, key);
        while (!answered(conns)) {}
    }
    tails = wants_tails;
    long done = 0;
    double start = now(), end = start + atof(argv[3]), seen = start;
    for (int i = 0; i < count; i++) ask(&conns[i], 0, rand_r(&conns[i].seed) % KEYS);
    while (seen < end) {
        struct epoll_event ready[64];
        int n = epoll_wait(set, ready, 64, 2000);
        if (n <= 0) exit(5);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (!answered(c)) continue;
            done++;
            if (tails) note(c);
            ask(c, rand_r(&c->seed) % 10 == 0, rand_r(&c->seed) % KEYS);
        }
        seen = now();
    }
    if (tails) printf("%.1f %.1f\n", within(0.99, done), within(0.999, done));
    else printf("%.1f\n", done / (seen - start));
    return 0;
}
