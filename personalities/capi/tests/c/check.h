/* What the test programs have in common; included first. Valid C11 and C++17. */
#ifndef CHECK_H
#define CHECK_H

/* What POSIX and Linux declare beside C11; C++ compilers define it themselves. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <madrigal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000LL

/* Ends the program, with the place and what Madrigal said last, unless the condition holds. */
#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", __FILE__, __LINE__, #condition, mdg_error_text());          \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

/* The byte at a place of a stream that begins with `seed`. */
static inline unsigned char pattern(unsigned seed, size_t at)
{
    return (unsigned char)(seed + at * 7 + (at >> 8) * 13 + (at >> 16));
}

static inline void fill(unsigned char *bytes, size_t len, unsigned seed)
{
    size_t at;
    for (at = 0; at < len; at++)
        bytes[at] = pattern(seed, at);
}

static inline int is_filled(const unsigned char *bytes, size_t len, unsigned seed)
{
    size_t at;
    for (at = 0; at < len; at++)
        if (bytes[at] != pattern(seed, at))
            return 0;
    return 1;
}

/* Reads exactly so many bytes. */
static inline void read_all(mdg_link link, void *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        int64_t got = mdg_read(link, (char *)buf + done, len - done, MDG_FOREVER);
        CHECK(got > 0);
        done += (size_t)got;
    }
}

/* Two ends of a link at an address of this process. */
static inline void join(mdg_runtime runtime, const char *at, mdg_link *client, mdg_link *server)
{
    char address[512];
    mdg_acceptor acceptor;
    CHECK(mdg_listen(runtime, at, &acceptor) == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) > 0);
    CHECK(mdg_connect(runtime, address, 10 * SECOND, client) == 0);
    CHECK(mdg_accept(acceptor, 10 * SECOND, server) == 0);
    CHECK(mdg_close(acceptor) == 0);
}

#endif
