/* Under SysWrap: sockets that two processes made themselves, both ends watched by an engine, much data; and a link of Madrigal's own
 * beside them. */
#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 3000, LEN = 1000 };

static int rounds;

/* Takes what is there and answers it; at the end of the stream the watch is closed. */
static void answers(void *user, mdg_handle watch, int64_t events)
{
    char buf[LEN];
    int socket = *(int *)user;
    ssize_t got = recv(socket, buf, sizeof buf, MSG_DONTWAIT);
    (void)events;
    if (got > 0)
        CHECK(send(socket, buf, (size_t)got, 0) == got);
    else if (got == 0)
        CHECK(mdg_close(watch) == 0 && (rounds = -1) == -1);
}

static void serve(int listener)
{
    mdg_runtime runtime;
    mdg_watch watch;
    int socket = accept(listener, NULL, NULL);
    CHECK(socket >= 0 && mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_watch_open(runtime, socket, POLLIN, answers, &socket, &watch) == 0);
    while (rounds >= 0)
        CHECK(mdg_turn(runtime, 20 * SECOND) > 0);
    CHECK(mdg_close(runtime) == 0);
    _exit(0);
}

struct asking {
    int socket;
    int got;
    unsigned char buf[LEN];
};

static void answered(void *user, mdg_handle watch, int64_t events)
{
    struct asking *asking = (struct asking *)user;
    ssize_t got = recv(asking->socket, asking->buf + asking->got, (size_t)(LEN - asking->got), MSG_DONTWAIT);
    (void)watch;
    (void)events;
    if (got > 0)
        asking->got += (int)got;
}

int main(void)
{
    static struct asking asking;
    unsigned char out[LEN];
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    int round, status, listener = socket(AF_INET, SOCK_STREAM, 0);
    mdg_runtime runtime;
    mdg_watch watch;
    pid_t child;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        serve(listener);
    asking.socket = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(asking.socket, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_watch_open(runtime, asking.socket, POLLIN, answered, &asking, &watch) == 0);
    for (round = 0; round < ROUNDS; round++) {
        fill(out, LEN, (unsigned)round);
        asking.got = 0;
        CHECK(send(asking.socket, out, LEN, 0) == LEN);
        while (asking.got < LEN)
            CHECK(mdg_turn(runtime, 20 * SECOND) > 0);
        CHECK(memcmp(asking.buf, out, LEN) == 0);
    }
    CHECK(mdg_close(watch) == 0 && close(asking.socket) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mdg_close(runtime) == 0);
    puts("good");
    return 0;
}
