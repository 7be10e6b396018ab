/* One loop for everything: a link, a descriptor of the program's own, and a timer, each with a handler. */
#include <madrigal.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

static int left = 3;

static void came(void *user, mdg_handle link, int64_t result)
{
    (void)link;
    if (result > 0)
        printf("a link: %.*s\n", (int)result, (const char *)user);
    left--;
}

static void ready(void *user, mdg_handle watch, int64_t events)
{
    char buf[64];
    ssize_t got = read(*(int *)user, buf, sizeof buf);
    if ((events & POLLIN) && got > 0)
        printf("a pipe: %.*s\n", (int)got, buf);
    mdg_close(watch);
    left--;
}

static void ran_out(void *user, mdg_handle timer, int64_t times)
{
    (void)user;
    printf("a timer: %lld\n", (long long)times);
    mdg_close(timer);
    left--;
}

int main(void)
{
    static char buf[64];
    int ends[2];
    mdg_runtime runtime;
    mdg_acceptor acceptor;
    mdg_link client, server;
    mdg_watch watch;
    mdg_timer timer;

    if (pipe(ends) != 0 || mdg_runtime_open(&runtime) < 0 ||
        mdg_listen(runtime, "loopback://handlers", &acceptor) < 0 ||
        mdg_connect(runtime, "loopback://handlers", MDG_FOREVER, &client) < 0 ||
        mdg_accept(acceptor, MDG_FOREVER, &server) < 0 ||
        mdg_post_read(server, buf, sizeof buf, came, buf, NULL) < 0 ||
        mdg_watch_open(runtime, ends[0], POLLIN, ready, &ends[0], &watch) < 0 ||
        mdg_timer_open(runtime, 1000000, 0, ran_out, NULL, &timer) < 0 ||
        mdg_write(client, "hello", 5, MDG_FOREVER) < 0 || write(ends[1], "hello", 5) != 5) {
        fprintf(stderr, "%s\n", mdg_error_text());
        return 1;
    }
    while (left > 0)
        if (mdg_turn(runtime, MDG_FOREVER) < 0)
            return 1;
    return mdg_close(runtime) < 0;
}
