/* What the test programs of vaio.h have in common; included first. Valid C11 and C++17. */
#ifndef REQUESTS_H
#define REQUESTS_H

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <vaio.h>

#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static const char *where;

/* Two ends of a link. */
static inline void connected(int *client, int *server)
{
    char address[512];
    int listener = vio_socket();

    CHECK(vio_listen(listener, where) == 0 && vio_address(listener, address, sizeof address) > 0);
    *client = vio_socket();
    CHECK(vio_connect(*client, address) == 0);
    *server = vio_accept(listener);
    CHECK(*server >= VIO_FIRST && vio_close(listener) == 0);
}

static inline void closed(int client, int server)
{
    CHECK(vio_close(client) == 0 && vio_close(server) == 0);
}

static inline void prepare(struct vaiocb *block, int fildes, const void *bytes, size_t length)
{
    memset(block, 0, sizeof *block);
    block->aio_fildes = fildes;
    block->aio_buf = (void *)(uintptr_t)bytes;
    block->aio_nbytes = length;
    block->aio_sigevent.sigev_notify = SIGEV_NONE;
}

static inline void asks_read(struct vaiocb *block, int fildes, void *bytes, size_t length)
{
    prepare(block, fildes, bytes, length);
    CHECK(vaio_read(block) == 0);
}

static inline void asks_write(struct vaiocb *block, int fildes, const void *bytes, size_t length)
{
    prepare(block, fildes, bytes, length);
    CHECK(vaio_write(block) == 0);
}

/* Waits until it is over; its error. */
static inline int over(const struct vaiocb *block)
{
    const struct vaiocb *one[1] = {block};

    CHECK(vaio_suspend(one, 1, NULL) == 0 && vaio_error(block) != EINPROGRESS);
    return vaio_error(block);
}

/* Waits until it is over without an error; its bytes. */
static inline ssize_t good(struct vaiocb *block)
{
    CHECK(over(block) == 0);
    return vaio_return(block);
}

#endif
