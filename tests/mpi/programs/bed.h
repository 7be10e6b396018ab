/* What the programs of the MPI test bed share. They use nothing but MPI and C. */
#ifndef BED_H
#define BED_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int rank, ranks;

/* Connections to other addresses than its own that this process has, and had at its beginning from its launcher. */
int connections(void);
extern int inherited;

/* Ends the whole job with a line that says what was wrong. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Fails with the text of the condition, and where it stands. */
#define CHECK(condition, ...) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s; ", __FILE__, __LINE__, #condition); \
            fail(__VA_ARGS__); \
        } \
    } while (0)

/* Bytes that follow from a seed alone, and their check. */
void fill(void *data, size_t length, uint64_t seed);
void expect(const void *data, size_t length, uint64_t seed, const char *what);

/* A generator with its state outside (splitmix64). */
uint64_t draw(uint64_t *state);

/* A length of one of the kinds that take different ways: nothing, small, medium, large. */
size_t some_length(uint64_t *state, size_t most);

void *must_alloc(size_t length);
double now(void);

/* argument(v, 1, 1000): the number there, or the default. */
long argument(char **arguments, int index, long other);

/* The tests: each gets its arguments, argv[0] being its name; ends by return or fail(). */
void test_brief(int count, char **arguments);
void test_ring(int count, char **arguments);
void test_exchange(int count, char **arguments);
void test_storm(int count, char **arguments);
void test_mixed(int count, char **arguments);
void test_probe(int count, char **arguments);
void test_cancel(int count, char **arguments);
void test_truncate(int count, char **arguments);
void test_self(int count, char **arguments);
void test_threads(int count, char **arguments);
void test_allreduce(int count, char **arguments);
void test_colls(int count, char **arguments);
void test_comms(int count, char **arguments);
void test_win(int count, char **arguments);
void test_fence(int count, char **arguments);
void test_pingpong(int count, char **arguments);
void test_bandwidth(int count, char **arguments);
void test_rate(int count, char **arguments);
void test_jobs(int count, char **arguments);
void test_sockets(int count, char **arguments);
void test_idle(int count, char **arguments);
void test_late(int count, char **arguments);
void test_kill(int count, char **arguments);
void test_why(int count, char **arguments);
void test_early(int count, char **arguments);
void test_cut(int count, char **arguments);
void test_flood(int count, char **arguments);
void test_exports(int count, char **arguments);
void test_expired(int count, char **arguments);

#endif
