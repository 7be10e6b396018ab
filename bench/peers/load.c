// Load for a server: some connections in one epoll loop, one request in flight on each.
//     load memcached|http PORT CONNECTIONS SECONDS [tails]
// memcached: nine gets to one set, 1,000 keys of 100 bytes. http: GET /page. Prints requests per second; with `tails`, how long requests
// took instead, in us, as they were timed: the 99th and the 99.9th of a hundred.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 1000, VALUE = 100, ROOM = 4096, STEPS = 1 << 20, STEPS_PER_US = 10 };

struct conn {
    int fd, is_set;
    unsigned seed;
    size_t got;
    double asked;
    char in[ROOM];
};

// How many requests took so many tenths of a microsecond; the last one counts all longer ones.
static unsigned took[STEPS];
static int tails, http;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void send_all(struct conn *c, const char *out, int n) {
    c->got = 0;
    if (tails) c->asked = now();
    if (write(c->fd, out, n) != n) exit(2);
}

static void ask_memcached(struct conn *c, int is_set, int key) {
    static char value[VALUE + 1];
    memset(value, 'v', VALUE);
    char out[ROOM];
    c->is_set = is_set;
    send_all(c, out, is_set ? snprintf(out, sizeof out, "set key:%d 0 0 %d\r\n%s\r\n", key, VALUE, value)
                            : snprintf(out, sizeof out, "get key:%d\r\n", key));
}

static void ask(struct conn *c) {
    static const char get[] = "GET /page HTTP/1.1\r\nHost: bench\r\n\r\n";
    if (http) send_all(c, get, sizeof get - 1);
    else ask_memcached(c, rand_r(&c->seed) % 10 == 0, rand_r(&c->seed) % KEYS);
}

static int http_answered(struct conn *c) {
    c->in[c->got] = 0;
    const char *end = strstr(c->in, "\r\n\r\n"), *length = strstr(c->in, "Content-Length: ");
    if (!end) return 0;
    if (strncmp(c->in, "HTTP/1.1 200", 12) || !length) exit(4);
    return c->got == end + 4 - c->in + strtoul(length + 16, 0, 10);
}

static int memcached_answered(struct conn *c) {
    const char *end = c->is_set ? "STORED\r\n" : "END\r\n";
    size_t len = strlen(end);
    if (c->got < len || memcmp(c->in + c->got - len, end, len)) return 0;
    if (!c->is_set && (c->got < VALUE || memcmp(c->in, "VALUE ", 6))) exit(4);
    return 1;
}

static int answered(struct conn *c) {
    ssize_t n = read(c->fd, c->in + c->got, ROOM - 1 - c->got);
    if (n <= 0) exit(3);
    c->got += n;
    return http ? http_answered(c) : memcached_answered(c);
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
    if (argc < 5) return 1;
    int wants_tails = argc > 5 && !strcmp(argv[5], "tails");
    http = !strcmp(argv[1], "http");
    int count = atoi(argv[3]), one = 1, set = epoll_create1(0);
    struct conn *conns = calloc(count, sizeof *conns);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
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
    for (int key = 0; key < KEYS && !http; key++) {
        ask_memcached(conns, 1, key);
        while (!answered(conns)) {}
    }
    tails = wants_tails;
    long done = 0;
    double start = now(), end = start + atof(argv[4]), seen = start;
    for (int i = 0; i < count; i++) ask(&conns[i]);
    while (seen < end) {
        struct epoll_event ready[64];
        int n = epoll_wait(set, ready, 64, 2000);
        if (n <= 0) exit(5);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (!answered(c)) continue;
            done++;
            if (tails) note(c);
            ask(c);
        }
        seen = now();
    }
    if (tails) printf("%.1f %.1f\n", within(0.99, done), within(0.999, done));
    else printf("%.1f\n", done / (seen - start));
    return 0;
}
