/* Vio's semantics, as a server with poll(2) has them by renaming its calls: a listener, clients and a pipe in one vio_poll(). */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>
#include <vio.h>

#define CLIENTS 5
#define LENGTH 1000000

#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static char address[512];
static int stop[2], served;

struct client {
    int vio;
    size_t have, sent;
    char bytes[30000];
};

/* Sends on what it has, as far as that goes; 0: it is over. */
static int echo_on(struct client *client, short revents)
{
    if ((revents & POLLIN) && client->have == client->sent) {
        ssize_t got = vio_read(client->vio, client->bytes, sizeof client->bytes);
        CHECK(got >= 0);
        if (got == 0)
            return 0;
        client->have = (size_t)got;
        client->sent = 0;
    }
    if (client->sent < client->have) {
        ssize_t wrote = vio_write(client->vio, client->bytes + client->sent, client->have - client->sent);
        CHECK(wrote >= 0 || errno == EAGAIN);
        client->sent += wrote > 0 ? (size_t)wrote : 0;
    }
    return 1;
}

static void *serve(void *listener)
{
    static struct client clients[CLIENTS];
    int count = 0, at, vio = *(int *)listener;

    for (;;) {
        struct pollfd all[CLIENTS + 2];
        all[0].fd = vio;
        all[1].fd = stop[0];
        all[0].events = all[1].events = POLLIN;
        for (at = 0; at < count; at++) {
            all[at + 2].fd = clients[at].vio;
            all[at + 2].events = clients[at].sent < clients[at].have ? POLLOUT : POLLIN;
        }
        CHECK(vio_poll(all, (unsigned long)count + 2, 60000) > 0);
        if (all[1].revents)
            break;
        for (at = count - 1; at >= 0; at--) {
            if (all[at + 2].revents && !echo_on(&clients[at], all[at + 2].revents)) {
                CHECK(vio_close(clients[at].vio) == 0);
                clients[at] = clients[--count];
                served++;
            }
        }
        if (all[0].revents) {
            int accepted = vio_accept(vio);
            CHECK(accepted >= VIO_FIRST && count < CLIENTS && vio_set_blocking(accepted, 0) == 0);
            memset(&clients[count], 0, sizeof clients[count]);
            clients[count++].vio = accepted;
        }
    }
    CHECK(count == 0);
    return NULL;
}

static void *ask(void *seed)
{
    static unsigned char bytes[CLIENTS][LENGTH], back[CLIENTS][LENGTH];
    int me = *(int *)seed, vio = vio_socket();
    size_t sent = 0, got = 0;

    fill(bytes[me], LENGTH, (unsigned)me);
    CHECK(vio >= VIO_FIRST && vio_connect(vio, address) == 0 && vio_set_blocking(vio, 0) == 0);
    while (got < LENGTH) {
        struct pollfd one = {vio, (short)(POLLIN | (sent < LENGTH ? POLLOUT : 0)), 0};
        CHECK(vio_poll(&one, 1, 60000) == 1);
        if (one.revents & POLLOUT) {
            ssize_t wrote = vio_write(vio, bytes[me] + sent, LENGTH - sent);
            CHECK(wrote > 0 || errno == EAGAIN);
            sent += wrote > 0 ? (size_t)wrote : 0;
        }
        if (one.revents & POLLIN) {
            ssize_t came = vio_read(vio, back[me] + got, LENGTH - got);
            CHECK(came > 0);
            got += (size_t)came;
        }
    }
    CHECK(is_filled(back[me], LENGTH, (unsigned)me));
    FAILS(vio_read(vio, bytes[me], 1), EAGAIN);
    CHECK(vio_close(vio) == 0);
    return NULL;
}

static void errors(const char *at)
{
    char few[8];
    int listener = vio_socket(), client = vio_socket(), server;
    struct pollfd none = {VIO_FIRST + 4000, POLLIN, 0};

    FAILS(vio_read(3, few, 1), EBADF);
    FAILS(vio_read(VIO_FIRST + 4000, few, 1), EBADF);
    FAILS(vio_read(client, few, 1), ENOTCONN);
    FAILS(vio_accept(client), EINVAL);
    FAILS(vio_listen(listener, "no address"), EINVAL);
    CHECK(vio_poll(&none, 1, 0) == 1 && none.revents == POLLNVAL);
    none.fd = -1;
    CHECK(vio_poll(&none, 1, 10) == 0);
    CHECK(vio_listen(listener, at) == 0 && vio_address(listener, address, sizeof address) > 0);
    CHECK(vio_set_blocking(listener, 0) == 0);
    FAILS(vio_accept(listener), EAGAIN);
    CHECK(vio_connect(client, address) == 0);
    none.fd = listener;
    CHECK(vio_poll(&none, 1, 10000) == 1 && none.revents == POLLIN);
    server = vio_accept(listener);
    CHECK(server >= VIO_FIRST);
    /* Blocking calls, and what lies there when the other end closes. */
    CHECK(vio_write(client, "twelve bytes", 12) == 12);
    CHECK(vio_read(server, few, sizeof few) == 8 && vio_read(server, few, sizeof few) == 4);
    CHECK(vio_write(client, "last", 4) == 4 && vio_close(client) == 0);
    none.fd = server;
    CHECK(vio_poll(&none, 1, 10000) == 1 && none.revents == POLLIN);
    CHECK(vio_read(server, few, sizeof few) == 4 && memcmp(few, "last", 4) == 0);
    CHECK(vio_poll(&none, 1, 10000) == 1 && none.revents == POLLIN);
    CHECK(vio_read(server, few, sizeof few) == 0 && vio_read(server, few, sizeof few) == 0);
    while (vio_write(server, few, sizeof few) > 0)
        ;
    CHECK(errno == EPIPE || errno == ECONNRESET);
    CHECK(strlen(vio_error_text()) > 0 && vio_close(server) == 0 && vio_close(listener) == 0);
    FAILS(vio_close(server), EBADF);
    client = vio_socket();
    FAILS(vio_connect(client, address), ECONNREFUSED);
    CHECK(vio_close(client) == 0);
}

int main(int argc, char **argv)
{
    const char *at = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    pthread_t server, clients[CLIENTS];
    int listener, round, me, seeds[CLIENTS];

    errors(at);
    listener = vio_socket();
    CHECK(vio_listen(listener, at) == 0 && vio_address(listener, address, sizeof address) > 0 && pipe(stop) == 0);
    CHECK(pthread_create(&server, NULL, serve, &listener) == 0);
    for (round = 0; round < 3; round++) {
        for (me = 0; me < CLIENTS; me++) {
            seeds[me] = me;
            CHECK(pthread_create(&clients[me], NULL, ask, &seeds[me]) == 0);
        }
        for (me = 0; me < CLIENTS; me++)
            CHECK(pthread_join(clients[me], NULL) == 0);
        while (__atomic_load_n(&served, __ATOMIC_ACQUIRE) < CLIENTS * (round + 1))
            usleep(1000);
    }
    CHECK(write(stop[1], "", 1) == 1 && pthread_join(server, NULL) == 0);
    CHECK(vio_close(listener) == 0);
    printf("good\n");
    return 0;
}
