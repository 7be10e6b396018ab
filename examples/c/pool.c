/* Processes that know nothing of each other but the name of a pool: `pool NAME SIZE`, started SIZE times, on any hosts of the grid. One is
 * elected, and the others send it a number. */
#include <madrigal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t minute = INT64_C(60000000000);

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

static int collect(mdg_receive_port port, int others)
{
    int32_t number, sum = 0;
    mdg_incoming message;

    for (int i = 0; i < others; i++) {
        if (mdg_port_receive(port, minute, &message) < 0 || mdg_get_number(message, MDG_INT32, &number) < 0 ||
            mdg_incoming_end(message) < 0)
            return failed("receive");
        sum += number;
    }
    printf("%d others, their ranks make %d\n", others, (int)sum);
    return 0;
}

static int give(mdg_runtime runtime, const char *address, int32_t number)
{
    mdg_send_port port;
    mdg_message message;

    if (mdg_send_port_open(runtime, "out", "", &port) < 0 || mdg_port_connect(port, address, minute) < 0 ||
        mdg_message_new(port, &message) < 0 || mdg_put_number(message, MDG_INT32, &number) < 0 || mdg_port_send(port, message) < 0)
        return failed("send");
    return mdg_flush(port, minute) < 0 ? failed("send") : 0;
}

int main(int argc, char **argv)
{
    int size = argc == 3 ? atoi(argv[2]) : 0, result;
    int64_t winner;
    char address[512] = "";
    mdg_runtime runtime;
    mdg_receive_port port;
    mdg_pool pool;

    if (size < 1) {
        fprintf(stderr, "usage: pool NAME SIZE\n");
        return 2;
    }
    if (mdg_runtime_open(&runtime) < 0 || mdg_receive_port_open(runtime, "in", "", &port) < 0 ||
        mdg_address(port, address, sizeof address) < 0)
        return failed("open");
    /* What others have to know of this process comes with it. */
    if (mdg_pool_join(runtime, argv[1], size, address, strlen(address), minute, &pool) < 0)
        return failed("join");
    winner = mdg_pool_elect(pool, "collector", MDG_POOL_FOR_LIFE, minute, NULL);
    if (winner < 0)
        return failed("elect");
    if (winner == mdg_pool_id(pool)) {
        /* Nobody joins any more, so the ranks are known: all but its own. */
        result = collect(port, size - 1);
        if (mdg_pool_terminate(pool, minute) < 0)
            return failed("terminate");
    } else {
        memset(address, 0, sizeof address);
        if (mdg_pool_blob(pool, winner, address, sizeof address - 1) < 0)
            return failed("who won");
        result = give(runtime, address, mdg_pool_rank(pool, mdg_pool_id(pool)));
        if (mdg_pool_wait_terminated(pool, minute) < 0)
            return failed("the end");
    }
    mdg_close(runtime);
    return result;
}
