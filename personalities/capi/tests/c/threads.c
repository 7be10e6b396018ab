/* Several threads on one runtime and one link: threads ADDRESS. */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

enum { LEN = 8 << 20, PIECE = 70000, PAIRS = 3 };

static mdg_runtime runtime;

struct side {
    mdg_link link;
    unsigned seed;
    pthread_t thread;
};

static void *writes(void *user)
{
    const struct side *side = (const struct side *)user;
    unsigned char *bytes = (unsigned char *)malloc(LEN);
    size_t done = 0;
    fill(bytes, LEN, side->seed);
    while (done < LEN) {
        size_t piece = LEN - done < PIECE ? LEN - done : PIECE;
        CHECK(mdg_write(side->link, bytes + done, piece, MDG_FOREVER) == (int64_t)piece);
        done += piece;
    }
    free(bytes);
    return NULL;
}

static void *reads(void *user)
{
    const struct side *side = (const struct side *)user;
    unsigned char *bytes = (unsigned char *)malloc(LEN);
    read_all(side->link, bytes, LEN);
    CHECK(is_filled(bytes, LEN, side->seed));
    free(bytes);
    return NULL;
}

/* A reader and a writer at each end of each link, all at once. */
static void both_ways(const char *at)
{
    struct side sides[PAIRS][4];
    int pair, side;
    for (pair = 0; pair < PAIRS; pair++) {
        mdg_link a, b;
        join(runtime, at, &a, &b);
        for (side = 0; side < 4; side++) {
            struct side *s = &sides[pair][side];
            s->link = side % 2 == 0 ? a : b;
            s->seed = (unsigned)(pair * 2 + (side == 0 || side == 3));
            CHECK(pthread_create(&s->thread, NULL, side < 2 ? writes : reads, s) == 0);
        }
    }
    for (pair = 0; pair < PAIRS; pair++) {
        for (side = 0; side < 4; side++)
            CHECK(pthread_join(sides[pair][side].thread, NULL) == 0);
        CHECK(mdg_close(sides[pair][0].link) == 0 && mdg_close(sides[pair][1].link) == 0);
    }
}

static void *waits_to_read(void *user)
{
    char byte;
    int64_t got = mdg_read(*(mdg_link *)user, &byte, 1, MDG_FOREVER);
    CHECK(got == MDG_ECLOSED && strstr(mdg_error_text(), " -> ") != NULL);
    return NULL;
}

static void *waits_to_accept(void *user)
{
    mdg_link link;
    CHECK(mdg_accept(*(mdg_acceptor *)user, MDG_FOREVER, &link) == MDG_ECLOSED);
    return NULL;
}

static void *waits_for_op(void *user)
{
    int64_t result = 0;
    CHECK(mdg_wait(*(mdg_op *)user, MDG_FOREVER, &result) == 1 && result == MDG_ECLOSED);
    return NULL;
}

/* What a thread waits for ends when another closes it. */
static void closed_by_another(const char *at)
{
    pthread_t reader, accepter, waiter;
    mdg_link a, b, c, d;
    mdg_acceptor acceptor;
    mdg_op op;
    char byte;
    int64_t result;
    join(runtime, at, &a, &b);
    join(runtime, at, &c, &d);
    CHECK(mdg_listen(runtime, "loopback://threads-closed", &acceptor) == 0);
    CHECK(mdg_post_read(c, &byte, 1, NULL, NULL, &op) == 0);
    CHECK(pthread_create(&reader, NULL, waits_to_read, &a) == 0);
    CHECK(pthread_create(&accepter, NULL, waits_to_accept, &acceptor) == 0);
    CHECK(pthread_create(&waiter, NULL, waits_for_op, &op) == 0);
    usleep(50000);
    CHECK(mdg_test(op, &result) == MDG_EBUSY && mdg_close(op) == MDG_EBUSY && mdg_cancel(op) == MDG_EBUSY);
    CHECK(mdg_close(a) == 0 && mdg_close(acceptor) == 0 && mdg_close(c) == 0);
    CHECK(pthread_join(reader, NULL) == 0 && pthread_join(accepter, NULL) == 0 && pthread_join(waiter, NULL) == 0);
    CHECK(mdg_read(b, &byte, 1, MDG_FOREVER) == 0 && mdg_read(d, &byte, 1, MDG_FOREVER) == 0);
    CHECK(mdg_close(b) == 0 && mdg_close(d) == 0);
    CHECK(mdg_test(op, &result) == MDG_EHANDLE);
}

static void *turns(void *user)
{
    int64_t got = 0;
    (void)user;
    while (got >= 0)
        got = mdg_turn(runtime, SECOND);
    CHECK(got == MDG_EHANDLE);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t turner, reader;
    mdg_link a, b;
    CHECK(argc == 2 && mdg_runtime_open(&runtime) == 0);
    both_ways(argv[1]);
    closed_by_another(argv[1]);
    /* The runtime ends under two threads that are in it. */
    join(runtime, argv[1], &a, &b);
    CHECK(pthread_create(&turner, NULL, turns, NULL) == 0);
    CHECK(pthread_create(&reader, NULL, waits_to_read, &a) == 0);
    usleep(50000);
    CHECK(mdg_close(runtime) == 0);
    CHECK(pthread_join(reader, NULL) == 0 && pthread_join(turner, NULL) == 0);
    puts("good");
    return 0;
}
