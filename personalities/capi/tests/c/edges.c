/* What is easily got wrong, each by its name: edges NAME, or edges names. Times that cannot be, waits that another thread ends, what is left behind. */
#include "check.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static mdg_runtime runtime;

static int64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * SECOND + at.tv_nsec;
}

/* Descriptors that this process has open. */
static int descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

struct told {
    int calls;
    mdg_handle handle;
    int64_t result;
};

static void tell(void *user, mdg_handle handle, int64_t result)
{
    struct told *told = (struct told *)user;
    told->handle = handle;
    told->result = result;
    __atomic_fetch_add(&told->calls, 1, __ATOMIC_SEQ_CST);
}

static pthread_t thread(void *(*run)(void *), void *with)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, with) == 0);
    return thread;
}

/* A Circuit that is a group of its own. */
static mdg_circuit alone(void)
{
    char address[MDG_ADDRESS];
    mdg_circuit circuit;
    CHECK(mdg_circuit_open(runtime, 0, &circuit) == 0 && mdg_circuit_address(circuit, address) == 0);
    CHECK(mdg_circuit_join(circuit, address, 1) == 0);
    return circuit;
}

/* --- times: a rest of a time that was computed, and has passed, is no time without end ------------------------------------------------ */

static void times_that_cannot_be(void)
{
    static const int64_t wrong[] = {-2, -SECOND, INT64_MIN};
    size_t at;
    char byte = 'x';
    int64_t result = 0;
    mdg_link a, b;
    mdg_handle made = 0;
    mdg_acceptor acceptor;
    mdg_op op;
    mdg_circuit circuit = alone();
    join(runtime, "loopback://times", &a, &b);
    CHECK(mdg_listen(runtime, "loopback://times", &acceptor) == 0);
    CHECK(mdg_post_read(a, &byte, 1, NULL, NULL, &op) == 0);
    for (at = 0; at < sizeof wrong / sizeof wrong[0]; at++) {
        CHECK(mdg_turn(runtime, wrong[at]) == MDG_EINVAL);
        CHECK(strstr(mdg_error_text(), "MDG_FOREVER") != NULL);
        CHECK(mdg_accept(acceptor, wrong[at], &made) == MDG_EINVAL);
        CHECK(mdg_connect(runtime, "loopback://times", wrong[at], &made) == MDG_EINVAL);
        CHECK(mdg_read(b, &byte, 1, wrong[at]) == MDG_EINVAL);
        CHECK(mdg_write(b, &byte, 1, wrong[at]) == MDG_EINVAL);
        CHECK(mdg_wait(op, wrong[at], &result) == MDG_EINVAL);
        CHECK(mdg_begin_unpacking(circuit, MDG_ANY, 0, 0, wrong[at], &made) == MDG_EINVAL);
    }
    CHECK(made == 0 && mdg_close(op) == 0);
}

static void *writes_late(void *user)
{
    usleep(20000);
    CHECK(mdg_write(*(mdg_link *)user, "x", 1, INT64_MAX) == 1);
    return NULL;
}

static void *calls_late(void *user)
{
    (void)user;
    usleep(20000);
    CHECK(mdg_call(runtime) == 0);
    return NULL;
}

static void times_that_are_huge(void)
{
    struct told told = {0, 0, 0};
    char byte;
    pthread_t writer;
    mdg_link a, b;
    mdg_timer timers[3];
    join(runtime, "shm://capi-edges-huge", &a, &b);
    CHECK(mdg_timer_open(runtime, UINT64_MAX, 0, tell, &told, &timers[0]) == 0);
    CHECK(mdg_timer_open(runtime, UINT64_MAX - 1, UINT64_MAX, tell, &told, &timers[1]) == 0);
    CHECK(mdg_timer_open(runtime, 0, UINT64_MAX, tell, &told, &timers[2]) == 0);
    CHECK(mdg_set_spin(runtime, UINT64_MAX) == 0 && mdg_set_kernel_every(runtime, 0) == 0);
    CHECK(mdg_set_kernel_every(runtime, UINT32_MAX) == 0 && mdg_set_kernel_every(runtime, 1) == 0);
    CHECK(mdg_set_weight(runtime, "shm", 0) == 0 && mdg_set_weight(runtime, "shm", UINT32_MAX) == 0);
    writer = thread(writes_late, &a);
    CHECK(mdg_read(b, &byte, 1, INT64_MAX) == 1);
    CHECK(pthread_join(writer, NULL) == 0);
    CHECK(mdg_set_spin(runtime, 1000) == 0);
    writer = thread(calls_late, NULL);
    CHECK(mdg_turn(runtime, INT64_MAX) >= 0);
    CHECK(pthread_join(writer, NULL) == 0);
    CHECK(told.calls == 1 && told.handle == timers[2]);
}

/* --- what is left behind --------------------------------------------------------------------------------------------------------------- */

/* Who looks for a link again and again, and gets none, leaves nothing behind. */
static void accepts_in_vain(void)
{
    int at;
    size_t before;
    mdg_acceptor acceptor;
    mdg_link link;
    mdg_op op;
    CHECK(mdg_listen(runtime, "shm://capi-edges-vain", &acceptor) == 0);
    CHECK(mdg_accept(acceptor, 0, &link) == MDG_ETIMEDOUT);
    before = mallinfo2().uordblks;
    for (at = 0; at < 50000; at++) {
        CHECK(mdg_accept(acceptor, 0, &link) == MDG_ETIMEDOUT);
        CHECK(mdg_post_accept(acceptor, NULL, NULL, &op) == 0 && mdg_cancel(op) == 0);
    }
    CHECK(mallinfo2().uordblks < before + 100000);
}

/* A port where nobody answers: its queue is full. */
static int deaf_port(char *address, size_t len)
{
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fillers;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 0) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    for (fillers = 0; fillers < 4; fillers++) {
        int filler = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        CHECK(filler >= 0);
        (void)!connect(filler, (struct sockaddr *)&at, sizeof at);
    }
    usleep(20000);
    snprintf(address, len, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    return listener;
}

struct connecting {
    mdg_runtime from;
    const char *to;
};

static void *connects(void *user)
{
    const struct connecting *its = (const struct connecting *)user;
    mdg_link link = 0;
    CHECK(mdg_connect(its->from, its->to, MDG_FOREVER, &link) == MDG_ECLOSED && link == 0);
    return NULL;
}

static void *waits_for_op(void *user)
{
    int64_t result = 0;
    CHECK(mdg_wait(*(mdg_op *)user, MDG_FOREVER, &result) == 1 && result == MDG_ECLOSED);
    return NULL;
}

/* A runtime that is closed while connects are under way: they are over, whoever waits, and their descriptors are closed. */
static void connects_cut_off(void)
{
    char address[64];
    struct told told = {0, 0, 0};
    struct connecting connecting;
    pthread_t waits[2];
    int before;
    int64_t began;
    mdg_op op, other;
    mdg_runtime own;
    deaf_port(address, sizeof address);
    before = descriptors();
    CHECK(mdg_runtime_open(&own) == 0);
    connecting.from = own, connecting.to = address;
    CHECK(mdg_post_connect(own, address, tell, &told, NULL) == 0);
    CHECK(mdg_post_connect(own, address, NULL, NULL, &op) == 0 && mdg_post_connect(own, address, NULL, NULL, &other) == 0);
    waits[0] = thread(connects, &connecting), waits[1] = thread(waits_for_op, &op);
    usleep(50000);
    CHECK(told.calls == 0);
    began = now();
    CHECK(mdg_close(own) == 0);
    CHECK(told.calls == 1 && told.result == MDG_ECLOSED);
    CHECK(pthread_join(waits[0], NULL) == 0 && pthread_join(waits[1], NULL) == 0);
    CHECK(now() - began < 5 * SECOND);
    CHECK(descriptors() == before);
}

/* A link whose handle is closed before all was written: what nobody will write any more ends with the runtime. */
static void writes_left_at_the_end(void)
{
    enum { LEN = 64 << 20 };
    static const char *const addresses[] = {"shm://capi-edges-left", "tcp://127.0.0.1:0", "loopback://edges-left"};
    char *bytes = (char *)calloc(1, LEN);
    int before = descriptors();
    size_t driver;
    for (driver = 0; driver < 3; driver++) {
        struct told told = {0, 0, 0};
        mdg_runtime own, far;
        mdg_acceptor acceptor;
        mdg_link a, b;
        char address[256];
        CHECK(mdg_runtime_open(&own) == 0 && mdg_runtime_open(&far) == 0);
        CHECK(mdg_listen(far, addresses[driver], &acceptor) == 0 && mdg_address(acceptor, address, sizeof address) > 0);
        CHECK(mdg_connect(own, address, 10 * SECOND, &a) == 0 && mdg_accept(acceptor, 10 * SECOND, &b) == 0);
        CHECK(mdg_post_write(a, bytes, LEN, tell, &told, NULL) == 0);
        CHECK(mdg_turn(own, 0) >= 0 && mdg_close(a) == 0 && told.calls == 0);
        CHECK(mdg_close(own) == 0 && told.calls == 1 && told.result == MDG_ECLOSED);
        CHECK(mdg_close(far) == 0 && descriptors() == before);
    }
    free(bytes);
}

/* A connect that is taken back, or is not decided in time, is over: nobody goes on trying. */
static void connects_taken_back(void)
{
    char address[64];
    int before;
    mdg_op op;
    mdg_link link;
    deaf_port(address, sizeof address);
    CHECK(mdg_turn(runtime, 0) >= 0);
    before = descriptors();
    CHECK(mdg_post_connect(runtime, address, NULL, NULL, &op) == 0 && descriptors() > before);
    CHECK(mdg_cancel(op) == 0 && descriptors() == before);
    CHECK(mdg_connect(runtime, address, 1000000, &link) == MDG_ETIMEDOUT && descriptors() == before);
    CHECK(mdg_post_connect(runtime, address, NULL, NULL, &op) == 0 && mdg_close(op) == 0 && descriptors() == before);
}

/* No handle is left: what is refused for that has taken nothing. */
static void no_handle_left(void)
{
    char address[256], byte = 0;
    int64_t result = 0, made = 0;
    int code;
    mdg_acceptor acceptor;
    mdg_link a, b, c, d = 0;
    mdg_op op = 0;
    mdg_packing packing = 0, last = 0;
    mdg_unpacking unpacking = 0;
    mdg_circuit circuit = alone();
    join(runtime, "loopback://edges-full", &a, &b);
    CHECK(mdg_listen(runtime, "loopback://edges-full", &acceptor) == 0);
    CHECK(mdg_connect(runtime, "loopback://edges-full", MDG_FOREVER, &c) == 0);
    CHECK(mdg_write(a, "x", 1, MDG_FOREVER) == 1);
    CHECK(mdg_begin_packing(circuit, 0, 0, &packing) == 0 && mdg_pack(packing, "y", 1, MDG_SAFER) == 0);
    CHECK(mdg_end_packing(packing) == 0);
    while ((code = mdg_begin_packing(circuit, 0, 0, &packing)) == 0)
        last = packing, made++;
    CHECK(code == MDG_EFULL && made > 1000000);
    CHECK(mdg_post_read(b, &byte, 1, NULL, NULL, &op) == MDG_EFULL && op == 0);
    CHECK(mdg_post_write(a, "z", 1, NULL, NULL, &op) == MDG_EFULL && op == 0);
    CHECK(mdg_accept(acceptor, SECOND, &d) == MDG_EFULL && d == 0);
    CHECK(mdg_begin_unpacking(circuit, MDG_ANY, 0, 0, SECOND, &unpacking) == MDG_EFULL && unpacking == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) > 0 && mdg_connect(runtime, address, SECOND, &d) == MDG_EFULL);
    CHECK(mdg_close(last) == 0);
    CHECK(mdg_post_read(b, &byte, 1, NULL, NULL, &op) == 0 && mdg_wait(op, SECOND, &result) == 1 && result == 1 && byte == 'x');
    CHECK(mdg_read(b, &byte, 1, 0) == MDG_ETIMEDOUT);
    CHECK(mdg_begin_unpacking(circuit, MDG_ANY, 0, 0, SECOND, &unpacking) == 0);
    CHECK(mdg_unpack(unpacking, &byte, 1, MDG_EXPRESS) == 0 && byte == 'y' && mdg_end_unpacking(unpacking) == 0);
    CHECK(mdg_accept(acceptor, SECOND, &d) == 0);
}

/* --- several threads ---------------------------------------------------------------------------------------------------------------------- */

static int over;

static void *polls(void *user)
{
    (void)user;
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST))
        CHECK(mdg_turn(runtime, 0) >= 0);
    return NULL;
}

static int rounds;

static void *turns_for_ever(void *user)
{
    (void)user;
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        CHECK(mdg_turn(runtime, MDG_FOREVER) >= 0);
        __atomic_fetch_add(&rounds, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* A thread that waits in mdg_turn() returns when it is called, though another one looks again and again. */
static void calls_are_not_swallowed(void)
{
    pthread_t waiter = thread(turns_for_ever, NULL), poller = thread(polls, NULL);
    int at;
    usleep(20000);
    for (at = 0; at < 300; at++) {
        int before = __atomic_load_n(&rounds, __ATOMIC_SEQ_CST), looks = 0;
        CHECK(mdg_call(runtime) == 0);
        while (__atomic_load_n(&rounds, __ATOMIC_SEQ_CST) == before) {
            CHECK(looks++ < 5000);
            usleep(1000);
        }
    }
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    CHECK(mdg_call(runtime) == 0);
    CHECK(pthread_join(waiter, NULL) == 0 && pthread_join(poller, NULL) == 0);
}

static void *reads_for_ever(void *user)
{
    char byte;
    CHECK(mdg_read(*(mdg_link *)user, &byte, 1, MDG_FOREVER) == MDG_ECLOSED);
    return NULL;
}

/* The descriptor tells of an operation that another thread's waiting has brought to its end. */
static void descriptor_tells_what_others_did(void)
{
    char address[256], byte;
    int64_t result = 0;
    struct pollfd polled = {-1, POLLIN, 0};
    pthread_t reader;
    int at;
    mdg_runtime far;
    mdg_acceptor acceptor;
    mdg_link a, b, c, d;
    mdg_op op;
    CHECK(mdg_runtime_open(&far) == 0 && mdg_listen(runtime, "tcp://127.0.0.1:0", &acceptor) == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) > 0);
    CHECK(mdg_connect(far, address, MDG_FOREVER, &a) == 0 && mdg_accept(acceptor, MDG_FOREVER, &b) == 0);
    CHECK(mdg_connect(far, address, MDG_FOREVER, &c) == 0 && mdg_accept(acceptor, MDG_FOREVER, &d) == 0);
    reader = thread(reads_for_ever, &d);
    usleep(20000);
    polled.fd = mdg_fd(runtime);
    CHECK(polled.fd >= 0);
    for (at = 0; at < 200; at++) {
        int turns = 0;
        CHECK(mdg_post_read(b, &byte, 1, NULL, NULL, &op) == 0);
        if (at % 3 != 0)
            usleep(200);
        CHECK(mdg_write(a, "x", 1, MDG_FOREVER) == 1);
        /* As the loop of a program: what is not told by the descriptor is not looked at. */
        while (poll(&polled, 1, 5000) == 1) {
            CHECK(mdg_turn(runtime, 0) >= 0 && turns++ < 1000);
            if (mdg_test(op, &result) == 1)
                break;
            result = 0;
        }
        CHECK(result == 1);
    }
    CHECK(mdg_close(d) == 0 && pthread_join(reader, NULL) == 0 && mdg_close(far) == 0);
}

static void end_runtime(void *user, mdg_handle handle, int64_t result)
{
    (void)result;
    CHECK(handle != 0 && mdg_close(*(mdg_runtime *)user) == 0);
    *(mdg_runtime *)user = 0;
}

/* A handler may close the runtime it is called by: of a timer, a descriptor, a link, an accept, a connect. */
static void handlers_that_end_their_runtime(void)
{
    char byte;
    int ends[2], which, before = 0;
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    for (which = 0; which < 5; which++) {
        static mdg_runtime own;
        struct told told = {0, 0, 0};
        mdg_handle made;
        mdg_acceptor acceptor;
        mdg_link a, b;
        if (which == 1)
            before = descriptors();
        CHECK(mdg_runtime_open(&own) == 0 && mdg_fd(own) >= 0);
        join(own, "loopback://edges-own", &a, &b);
        CHECK(mdg_listen(own, "loopback://edges-own", &acceptor) == 0);
        CHECK(mdg_timer_open(own, which == 0 ? 0 : 3600 * SECOND, 1, end_runtime, &own, &made) == 0);
        if (which == 1)
            CHECK(mdg_watch_open(own, ends[0], POLLIN, end_runtime, &own, &made) == 0);
        if (which == 2)
            CHECK(mdg_post_read(a, &byte, 1, end_runtime, &own, NULL) == 0 && mdg_write(b, "x", 1, 0) == 1);
        if (which == 3)
            CHECK(mdg_post_accept(acceptor, end_runtime, &own, NULL) == 0);
        if (which == 4)
            CHECK(mdg_post_connect(own, "loopback://edges-own", end_runtime, &own, NULL) == 0);
        CHECK(mdg_post_connect(own, "loopback://edges-own", tell, &told, NULL) == 0);
        while (own != 0)
            (void)mdg_turn(own, SECOND);
        CHECK(told.calls <= 1);
    }
    CHECK(descriptors() <= before);
}

/* --- signals -------------------------------------------------------------------------------------------------------------------------------- */

static void alarmed(int number)
{
    (void)number;
}

/* Signals come all the time: every wait lasts as long as was asked, and what is sent arrives. */
static void signals_while_waiting(void)
{
    struct sigaction action;
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    const int64_t time = 30000000;
    int64_t began, result = 0;
    char buf[4096];
    size_t at, drivers;
    static const char *const addresses[] = {"shm://capi-edges-signals", "tcp://127.0.0.1:0", "loopback://edges-signals"};
    memset(&action, 0, sizeof action);
    action.sa_handler = alarmed;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (drivers = 0; drivers < 3; drivers++) {
        mdg_link a, b, c;
        mdg_acceptor acceptor;
        mdg_op op;
        join(runtime, addresses[drivers], &a, &b);
        CHECK(mdg_listen(runtime, addresses[drivers], &acceptor) == 0);
        began = now();
        CHECK(mdg_read(a, buf, 1, time) == MDG_ETIMEDOUT && now() - began >= time);
        began = now();
        CHECK(mdg_accept(acceptor, time, &c) == MDG_ETIMEDOUT && now() - began >= time);
        CHECK(mdg_post_read(a, buf, sizeof buf, NULL, NULL, &op) == 0);
        began = now();
        CHECK(mdg_wait(op, time, &result) == 0 && now() - began >= time);
        for (at = 0; at < 300; at++) {
            CHECK(mdg_write(b, buf, 64, MDG_FOREVER) == 64 && mdg_wait(op, MDG_FOREVER, &result) == 1 && result > 0);
            CHECK(mdg_post_read(a, buf, sizeof buf, NULL, NULL, &op) == 0);
        }
        CHECK(mdg_close(op) == 0 && mdg_close(a) == 0 && mdg_close(b) == 0 && mdg_close(acceptor) == 0);
    }
    began = now();
    CHECK(mdg_begin_unpacking(alone(), MDG_ANY, 0, 0, time, &(mdg_unpacking){0}) == MDG_ETIMEDOUT && now() - began >= time);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

/* Writing to a peer that has gone is an error, and no SIGPIPE. */
static void peers_that_are_gone(void)
{
    static const char *const addresses[] = {"shm://capi-edges-gone", "tcp://127.0.0.1:0", "loopback://edges-gone"};
    static char buf[1 << 16];
    size_t driver;
    for (driver = 0; driver < 3; driver++) {
        mdg_link a, b;
        int64_t code = 0;
        int at;
        join(runtime, addresses[driver], &a, &b);
        CHECK(mdg_close(b) == 0);
        for (at = 0; at < 1000 && code >= 0; at++)
            code = mdg_write(a, buf, sizeof buf, SECOND);
        CHECK(code == MDG_EGONE);
    }
}

/* --- descriptors that were closed too early ----------------------------------------------------------------------------------------------- */

/* A descriptor is closed before its watch, and its number used again: closing the old watch leaves the new one. */
static void numbers_used_again(void)
{
    int old[2], fresh[2], turns = 0;
    struct told told = {0, 0, 0};
    mdg_watch first, second;
    CHECK(pipe(old) == 0 && mdg_watch_open(runtime, old[0], POLLIN, tell, &told, &first) == 0);
    CHECK(close(old[0]) == 0 && pipe(fresh) == 0 && fresh[0] == old[0]);
    CHECK(mdg_watch_open(runtime, fresh[0], POLLIN, tell, &told, &second) == 0);
    CHECK(mdg_watch_change(first, POLLOUT) == MDG_ESYSTEM && mdg_error_number() == EBADF);
    CHECK(mdg_close(first) == 0 && write(fresh[1], "x", 1) == 1);
    while (told.calls == 0 && turns++ < 100)
        CHECK(mdg_turn(runtime, SECOND / 10) >= 0);
    CHECK(told.calls > 0 && told.handle == second && mdg_close(second) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
    {"times-that-cannot-be", times_that_cannot_be},
    {"times-that-are-huge", times_that_are_huge},
    {"accepts-in-vain", accepts_in_vain},
    {"writes-left-at-the-end", writes_left_at_the_end},
    {"connects-cut-off", connects_cut_off},
    {"connects-taken-back", connects_taken_back},
    {"no-handle-left", no_handle_left},
    {"calls-are-not-swallowed", calls_are_not_swallowed},
    {"descriptor-tells-what-others-did", descriptor_tells_what_others_did},
    {"handlers-that-end-their-runtime", handlers_that_end_their_runtime},
    {"signals-while-waiting", signals_while_waiting},
    {"peers-that-are-gone", peers_that_are_gone},
    {"numbers-used-again", numbers_used_again},
};

int main(int argc, char **argv)
{
    size_t at;
    CHECK(argc == 2 && mdg_runtime_open(&runtime) == 0);
    for (at = 0; at < sizeof all / sizeof all[0] && strcmp(argv[1], "names") == 0; at++)
        puts(all[at].name);
    for (at = 0; at < sizeof all / sizeof all[0]; at++)
        if (strcmp(argv[1], all[at].name) == 0) {
            all[at].run();
            CHECK(mdg_close(runtime) == 0);
            puts("good");
            return 0;
        }
    return mdg_close(runtime) != 0 || strcmp(argv[1], "names") != 0;
}
