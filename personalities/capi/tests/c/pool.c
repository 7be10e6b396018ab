/* Pools: who is in, elections, signals, attributes, events and their descriptor, what is refused, and a process that is killed. */
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t TIME = INT64_C(60000000000);

static mdg_runtime runtime;
static mdg_pool_event event;

/* Takes events up to one of that kind. */
static void await(mdg_pool pool, int kind)
{
    int got;
    while ((got = mdg_pool_next(pool, TIME, &event)) != kind)
        CHECK(got > 0);
    CHECK(event.kind == kind);
}

/* A process that joins, wins an election, and waits to be killed. */
static void victim(int in)
{
    mdg_pool pool;
    char byte;
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_pool_join(runtime, "open", MDG_POOL_OPEN, "v", 1, TIME, &pool) == 0);
    CHECK(mdg_pool_elect(pool, "master", MDG_POOL_FOLLOWED, TIME, NULL) == mdg_pool_id(pool));
    CHECK(mdg_pool_signal(pool, NULL, 0, "here", TIME) == 0);
    CHECK(read(in, &byte, 1) == 0);
}

/* One of two ranks, as a launcher would start it. */
static void ranked(const char *rank)
{
    mdg_pool pool;
    int64_t ids[4];
    CHECK(setenv("PMI_RANK", rank, 1) == 0 && setenv("PMI_SIZE", "2", 1) == 0);
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_pool_join(runtime, "job", MDG_POOL_LAUNCHED, NULL, 0, TIME, &pool) == 0);
    CHECK(mdg_pool_rank(pool, mdg_pool_id(pool)) == rank[0] - '0');
    CHECK(mdg_pool_members(pool, ids, 4) == 2 && ids[0] == 0 && ids[1] == 1);
    CHECK(mdg_pool_elect(pool, "root", MDG_POOL_FOR_LIFE, TIME, NULL) >= 0);
    CHECK(mdg_pool_terminate(pool, TIME) == 0 && mdg_pool_wait_terminated(pool, TIME) == 0);
    mdg_close(runtime);
}

static void refused(void)
{
    mdg_pool pool;
    CHECK(mdg_pool_join(runtime, "a b", MDG_POOL_OPEN, NULL, 0, TIME, &pool) == MDG_EINVAL);
    CHECK(mdg_pool_join(runtime, "p", -2, NULL, 0, TIME, &pool) == MDG_EINVAL);
    CHECK(mdg_pool_join(runtime, "p", MDG_POOL_LAUNCHED, NULL, 0, TIME, &pool) == MDG_EUNUSABLE);
    CHECK(mdg_pool_join(runtime, "p", 2, NULL, 0, INT64_C(100000000), &pool) == MDG_ETIMEDOUT);
    CHECK(strcmp(mdg_error_text(), "1 of 2 members of pool p have joined: start the others") == 0);
    CHECK(mdg_pool_join(runtime, "p", MDG_POOL_OPEN, NULL, 1, TIME, &pool) == MDG_EINVAL);
    CHECK(mdg_pool_id(runtime) == MDG_ETYPE && mdg_pool_id(77) == MDG_EHANDLE);
    /* Without waiting: it is a member later. */
    CHECK(mdg_pool_join(runtime, "two", 2, NULL, 0, 0, &pool) == 0);
    CHECK(mdg_pool_joined(pool, INT64_C(1000000)) == MDG_ETIMEDOUT);
    CHECK(mdg_close(pool) == 0 && mdg_pool_joined(pool, 0) == MDG_EHANDLE);
}

int main(void)
{
    mdg_pool pool;
    int pipes[2], status, fd;
    char buf[16], text[600];
    uint64_t number = 0, later = 0;
    int64_t other, own, ids[1];
    pid_t child, ranks[2];
    CHECK(pipe(pipes) == 0);
    child = fork();
    if (child == 0) {
        close(pipes[1]);
        victim(pipes[0]);
        return 0;
    }
    for (int i = 0; i < 2; i++)
        if ((ranks[i] = fork()) == 0) {
            ranked(i == 0 ? "0" : "1");
            return 0;
        }
    CHECK(mdg_runtime_open(&runtime) == 0);
    refused();
    CHECK(mdg_pool_join(runtime, "open", MDG_POOL_OPEN, "tcp://x:1", 9, TIME, &pool) == 0);
    own = mdg_pool_id(pool);
    CHECK(own >= 0 && mdg_pool_blob(pool, own, buf, sizeof buf) == 9 && memcmp(buf, "tcp://x:1", 9) == 0);
    CHECK(mdg_pool_blob(pool, own, NULL, 0) == 9 && mdg_pool_blob(pool, 99, buf, 1) == MDG_EGONE);
    CHECK(mdg_pool_location(pool, own, buf, sizeof buf) == 4 && strcmp(buf, "h0@s") == 0);
    CHECK(mdg_pool_rank(pool, own) == MDG_ERANK);
    /* The other one wins; its death makes room for this one, with a higher number. */
    other = mdg_pool_winner(pool, "master", TIME);
    CHECK(other >= 0 && other != own);
    CHECK(mdg_pool_elect(pool, "master", MDG_POOL_FOLLOWED, TIME, &number) == other);
    CHECK(mdg_pool_elect(pool, "master", MDG_POOL_FOR_LIFE, TIME, NULL) == MDG_EMISMATCH);
    CHECK(mdg_pool_elect(pool, "master", 7, TIME, NULL) == MDG_EINVAL);
    CHECK(mdg_pool_suspect(pool, other, TIME) == 0 && mdg_pool_suspect(pool, 99, TIME) == MDG_EGONE);
    CHECK(mdg_pool_members(pool, ids, 1) == 2);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    await(pool, MDG_POOL_DIED);
    CHECK(event.member == other);
    await(pool, MDG_POOL_VACANT);
    CHECK(strcmp(event.text, "master") == 0 && mdg_pool_winner(pool, "master", 0) == MDG_ETIMEDOUT);
    CHECK(mdg_pool_elect(pool, "master", MDG_POOL_FOLLOWED, TIME, &later) == own && later > number);
    await(pool, MDG_POOL_ELECTED);
    CHECK(event.member == own && event.number == later);
    /* Attributes and signals. */
    CHECK(mdg_pool_set(pool, 0, "epoch", "7", 1, TIME) == 0 && mdg_pool_set(pool, 1, "role", "", 0, TIME) == 0);
    CHECK(mdg_pool_get(pool, MDG_POOL_ITSELF, "epoch", buf, sizeof buf) == 1 && buf[0] == '7');
    CHECK(mdg_pool_get(pool, own, "epoch", buf, sizeof buf) == MDG_EGONE);
    CHECK(mdg_pool_set(pool, 0, "epoch", NULL, 0, TIME) == 0);
    CHECK(mdg_pool_get(pool, MDG_POOL_ITSELF, "epoch", buf, sizeof buf) == MDG_EGONE);
    await(pool, MDG_POOL_SET);
    CHECK(event.member == -1 && strcmp(event.text, "epoch") == 0);
    CHECK(mdg_pool_signal(pool, &own, 1, "to myself", TIME) == 0);
    CHECK(mdg_pool_signal(pool, &other, 1, "gone", TIME) == MDG_EGONE);
    /* The descriptor: readable while there is an event, and not when all are taken. */
    fd = mdg_pool_fd(pool);
    CHECK(fd >= 0);
    CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 60000) == 1);
    await(pool, MDG_POOL_SIGNAL);
    CHECK(strcmp(event.text, "to myself") == 0 && event.member == own);
    CHECK(mdg_pool_next(pool, 0, &event) == MDG_ETIMEDOUT);
    CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 0);
    CHECK(mdg_why(pool, text, sizeof text) > 0 && strstr(text, "\"pool\":\"open\"") != NULL);
    CHECK(mdg_pool_leave(pool, TIME) == 0 && mdg_pool_elect(pool, "x", 0, TIME, NULL) < 0);
    CHECK(mdg_close(pool) == 0 && mdg_pool_id(pool) == MDG_EHANDLE);
    for (int i = 0; i < 2; i++)
        CHECK(waitpid(ranks[i], &status, 0) == ranks[i] && status == 0);
    mdg_close(runtime);
    puts("good");
    return 0;
}
