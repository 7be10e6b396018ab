/* The program's own descriptors and timers in the engine, the engine in the program's own event loop, and what is tuned at run time. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MANY = 500 };

struct pair {
    int ends[2];
    mdg_watch watch;
    int calls;
    int64_t events;
};

/* Reads one byte of however many there are. */
static void readable(void *user, mdg_handle handle, int64_t events)
{
    struct pair *pair = (struct pair *)user;
    char byte;
    CHECK(handle == pair->watch && (events & POLLIN));
    CHECK(read(pair->ends[0], &byte, 1) == 1);
    pair->calls++;
    pair->events = events;
}

/* Closes its own watch, and asks for another one of the same descriptor. */
static void once(void *user, mdg_handle handle, int64_t events)
{
    struct pair *pair = (struct pair *)user;
    (void)events;
    CHECK(mdg_close(handle) == 0);
    pair->calls++;
}

static void many_descriptors(mdg_runtime runtime)
{
    static struct pair pairs[MANY];
    int at, turns;
    for (at = 0; at < MANY; at++) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pairs[at].ends) == 0);
        CHECK(mdg_watch_open(runtime, pairs[at].ends[0], POLLIN, readable, &pairs[at], &pairs[at].watch) == 0);
    }
    CHECK(mdg_watch_open(runtime, pairs[0].ends[0], POLLIN, readable, NULL, &pairs[0].watch) == MDG_ESYSTEM);
    CHECK(mdg_error_number() == EEXIST);
    CHECK(mdg_turn(runtime, 0) == 0);
    /* Two bytes each: told as long as there is one, and not once more. */
    for (at = 0; at < MANY; at++)
        CHECK(write(pairs[at].ends[1], "xy", 2) == 2);
    for (turns = 0; turns < 1000; turns++)
        CHECK(mdg_turn(runtime, 0) >= 0);
    for (at = 0; at < MANY; at++)
        CHECK(pairs[at].calls == 2);
    for (at = 0; at < MANY; at++)
        CHECK(mdg_close(pairs[at].watch) == 0 && mdg_close(pairs[at].watch) == MDG_EHANDLE);
    CHECK(write(pairs[0].ends[1], "z", 1) == 1 && mdg_turn(runtime, 0) == 0 && pairs[0].calls == 2);
    for (at = 0; at < MANY; at++)
        close(pairs[at].ends[0]), close(pairs[at].ends[1]);
}

static void changed_descriptor(mdg_runtime runtime)
{
    struct pair pair = {{0, 0}, 0, 0, 0};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.ends) == 0);
    CHECK(mdg_watch_open(runtime, pair.ends[0], POLLIN, once, &pair, &pair.watch) == 0);
    CHECK(mdg_turn(runtime, 0) == 0 && pair.calls == 0);
    CHECK(mdg_watch_change(pair.watch, POLLOUT) == 0);
    CHECK(mdg_turn(runtime, 10 * SECOND) > 0 && pair.calls == 1);
    CHECK(mdg_turn(runtime, 0) == 0 && pair.calls == 1);
    CHECK(mdg_watch_change(pair.watch, POLLIN) == MDG_EHANDLE);
    CHECK(mdg_watch_open(runtime, pair.ends[0], POLLOUT, once, &pair, &pair.watch) == 0);
    CHECK(mdg_turn(runtime, 10 * SECOND) > 0 && pair.calls == 2);
    close(pair.ends[0]), close(pair.ends[1]);
}

static void a_file_is_refused(mdg_runtime runtime)
{
    mdg_watch watch = 0;
    int file = open("/etc/passwd", O_RDONLY);
    CHECK(file >= 0);
    CHECK(mdg_watch_open(runtime, file, POLLIN, readable, NULL, &watch) == MDG_ESYSTEM);
    CHECK(mdg_error_number() == EPERM && strstr(mdg_error_text(), "cannot watch descriptor") != NULL && watch == 0);
    close(file);
}

static void runs_out(void *user, mdg_handle handle, int64_t count)
{
    CHECK(handle != 0 && count >= 1);
    *(int64_t *)user += count;
}

static void timers(mdg_runtime runtime)
{
    int64_t single = 0, repeated = 0, late = 0;
    mdg_timer a, b, c;
    CHECK(mdg_timer_open(runtime, 3600 * SECOND, 0, runs_out, &late, &c) == 0);
    CHECK(mdg_timer_open(runtime, 2000000, 0, runs_out, &single, &a) == 0);
    CHECK(mdg_timer_open(runtime, 0, 1000000, runs_out, &repeated, &b) == 0);
    while (repeated < 20 || single == 0)
        CHECK(mdg_turn(runtime, 10 * SECOND) >= 0);
    CHECK(single == 1 && late == 0);
    CHECK(mdg_close(b) == 0);
    repeated = 0;
    usleep(3000);
    CHECK(mdg_turn(runtime, 0) == 0 && repeated == 0);
    CHECK(mdg_close(a) == 0 && mdg_close(c) == 0);
}

static void *calls(void *user)
{
    usleep(20000);
    CHECK(mdg_call(*(mdg_runtime *)user) == 0);
    return NULL;
}

static void called_from_another_thread(mdg_runtime runtime)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, calls, &runtime) == 0);
    CHECK(mdg_turn(runtime, MDG_FOREVER) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* One that came before is not lost. */
    CHECK(mdg_call(runtime) == 0 && mdg_turn(runtime, MDG_FOREVER) == 0);
}

struct echo {
    mdg_link link;
    char buf[64];
    int64_t got;
};

static void arrived(void *user, mdg_handle handle, int64_t result)
{
    struct echo *echo = (struct echo *)user;
    CHECK(handle == echo->link);
    echo->got = result;
}

/* An event loop of the program's own: links over every driver, told by one descriptor. */
static void own_loop(mdg_runtime runtime, const char *at)
{
    struct epoll_event event;
    struct echo echo = {0, "", 0};
    mdg_link client;
    int round, set = epoll_create1(EPOLL_CLOEXEC), fd = mdg_fd(runtime);
    CHECK(set >= 0 && fd >= 0 && mdg_fd(runtime) == fd);
    join(runtime, at, &client, &echo.link);
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (round = 0; round < 50; round++) {
        char text[64];
        int len = snprintf(text, sizeof text, "message %d", round) + 1, turns = 0;
        echo.got = 0;
        CHECK(mdg_post_read(echo.link, echo.buf, sizeof echo.buf, arrived, &echo, NULL) == 0);
        CHECK(mdg_write(client, text, (size_t)len, MDG_FOREVER) == len);
        while (echo.got != len || strcmp(echo.buf, text) != 0) {
            CHECK(epoll_wait(set, &event, 1, 10000) == 1);
            CHECK(mdg_turn(runtime, 0) >= 0);
            CHECK(++turns < 1000);
        }
    }
    /* Nothing is to be done: it becomes quiet. */
    for (round = 0; round < 100 && epoll_wait(set, &event, 1, 50) == 1; round++)
        CHECK(mdg_turn(runtime, 0) >= 0);
    CHECK(round < 100);
    CHECK(mdg_call(runtime) == 0 && epoll_wait(set, &event, 1, 10000) == 1);
    CHECK(mdg_turn(runtime, 0) >= 0);
    CHECK(mdg_close(client) == 0 && mdg_close(echo.link) == 0);
    close(set);
}

static void tuned(mdg_runtime runtime)
{
    static struct pair pair;
    int64_t before = mdg_work_done(runtime, "descriptors");
    CHECK(before > 0);
    CHECK(mdg_set_weight(runtime, "descriptors", 3) == 0 && mdg_set_kernel_every(runtime, 1) == 0);
    CHECK(mdg_set_spin(runtime, 0) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.ends) == 0);
    CHECK(mdg_watch_open(runtime, pair.ends[0], POLLIN, readable, &pair, &pair.watch) == 0);
    CHECK(write(pair.ends[1], "abc", 3) == 3);
    while (pair.calls < 3)
        CHECK(mdg_turn(runtime, 10 * SECOND) >= 0);
    CHECK(mdg_work_done(runtime, "descriptors") == before + 3);
    CHECK(mdg_close(pair.watch) == 0);
    close(pair.ends[0]), close(pair.ends[1]);
    CHECK(mdg_set_spin(runtime, 50000) == 0 && mdg_set_kernel_every(runtime, 32) == 0);
}

int main(void)
{
    char why[4096];
    mdg_runtime runtime;
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_why(runtime, why, sizeof why) > 0 && strstr(why, "\"driver\":\"tcp\"") != NULL);
    many_descriptors(runtime);
    changed_descriptor(runtime);
    a_file_is_refused(runtime);
    timers(runtime);
    called_from_another_thread(runtime);
    tuned(runtime);
    own_loop(runtime, "loopback://engine");
    own_loop(runtime, "shm://capi-engine");
    own_loop(runtime, "tcp://127.0.0.1:0");
    CHECK(mdg_close(runtime) == 0);
    puts("good");
    return 0;
}
