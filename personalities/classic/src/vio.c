#define _POSIX_C_SOURCE 200809L

#include "vio.h"

#include "socket.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 4096
/* What vio_poll() may take in before it is read, and what a write may leave behind that does not block. */
#define BUFFER (64 << 10)

static struct socket *table[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int opened;
mdg_runtime vio_runtime;
static _Thread_local char text[512];

const char *vio_error_text(void)
{
    return text;
}

static int fail(int number, const char *what)
{
    snprintf(text, sizeof text, "%s", what);
    errno = number;
    return -1;
}

/* An error of Madrigal's, as sockets call it. */
static int failed(int64_t code)
{
    switch (code) {
    case MDG_ETIMEDOUT:
        return fail(EAGAIN, "nothing yet");
    case MDG_ERESET:
        return fail(ECONNRESET, mdg_error_text());
    case MDG_EGONE:
        return fail(EPIPE, mdg_error_text());
    case MDG_EREFUSED:
        return fail(ECONNREFUSED, mdg_error_text());
    case MDG_EINUSE:
        return fail(EADDRINUSE, mdg_error_text());
    case MDG_EADDRESS:
    case MDG_ENODRIVER:
    case MDG_EINVAL:
        return fail(EINVAL, mdg_error_text());
    case MDG_ENOPATH:
        return fail(EHOSTUNREACH, mdg_error_text());
    case MDG_EPERM:
        return fail(EACCES, mdg_error_text());
    case MDG_ECLOSED:
    case MDG_EHANDLE:
        return fail(EBADF, mdg_error_text());
    case MDG_EFULL:
        return fail(EMFILE, mdg_error_text());
    default:
        return fail(mdg_error_number() ? mdg_error_number() : EIO, mdg_error_text());
    }
}

int vio_errno(int64_t code)
{
    failed(code);
    return errno;
}

static void open_runtime(void)
{
    opened = mdg_runtime_open(&vio_runtime) == 0;
}

static struct socket *socket_of(int vio, enum kind kind)
{
    struct socket *socket;

    if (vio < VIO_FIRST || vio >= VIO_FIRST + MOST) {
        fail(EBADF, "no vio socket");
        return NULL;
    }
    socket = __atomic_load_n(&table[vio - VIO_FIRST], __ATOMIC_ACQUIRE);
    if (!socket || (kind != FREE && socket->kind != kind)) {
        fail(socket ? (kind == CONNECTED ? ENOTCONN : EINVAL) : EBADF, "no vio socket of that kind");
        return NULL;
    }
    return socket;
}

struct socket *vio_connected(int vio)
{
    return socket_of(vio, CONNECTED);
}

/* A new number. */
static int numbered(struct socket *socket)
{
    int at;

    pthread_mutex_lock(&lock);
    for (at = 0; at < MOST && table[at]; at++)
        ;
    if (at < MOST)
        __atomic_store_n(&table[at], socket, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return at < MOST ? VIO_FIRST + at : fail(EMFILE, "4096 vio sockets are open");
}

static int made(enum kind kind, mdg_handle handle)
{
    struct socket *socket = calloc(1, sizeof *socket);
    int vio;

    if (!socket)
        return fail(ENOMEM, "no memory");
    socket->kind = kind;
    socket->blocks = 1;
    socket->handle = handle;
    pthread_mutex_init(&socket->writing, NULL);
    vio = numbered(socket);
    if (vio < 0)
        free(socket);
    return vio;
}

int vio_socket(void)
{
    pthread_once(&once, open_runtime);
    return opened ? made(FRESH, 0) : fail(EIO, "cannot open a runtime");
}

int vio_listen(int vio, const char *address)
{
    struct socket *socket = socket_of(vio, FRESH);
    int code;

    if (!socket)
        return -1;
    code = mdg_listen(vio_runtime, address, &socket->handle);
    if (code < 0)
        return failed(code);
    socket->kind = LISTENS;
    return 0;
}

int vio_address(int vio, char *address, size_t size)
{
    struct socket *socket = socket_of(vio, LISTENS);
    int64_t length = socket ? mdg_address(socket->handle, address, size) : -1;

    return !socket ? -1 : length < 0 ? failed(length) : (int)length;
}

int vio_connect(int vio, const char *address)
{
    struct socket *socket = socket_of(vio, FRESH);
    int code;

    if (!socket)
        return -1;
    code = mdg_connect(vio_runtime, address, MDG_FOREVER, &socket->handle);
    if (code < 0)
        return code == MDG_ETIMEDOUT ? fail(ETIMEDOUT, mdg_error_text()) : failed(code);
    socket->kind = CONNECTED;
    return 0;
}

int vio_set_blocking(int vio, int blocks)
{
    struct socket *socket = socket_of(vio, FREE);

    if (!socket)
        return -1;
    socket->blocks = blocks != 0;
    return 0;
}

static int64_t patience(const struct socket *socket)
{
    return socket->blocks ? MDG_FOREVER : 0;
}

int vio_accept(int vio)
{
    struct socket *socket = socket_of(vio, LISTENS);
    mdg_link link;
    int code, accepted;

    if (!socket)
        return -1;
    if (socket->in)
        return fail(EBUSY, "another thread polls it");
    if (socket->has_result) {
        socket->has_result = 0;
        if (socket->result < 0)
            return failed(socket->result);
        link = (mdg_link)socket->result;
    } else {
        code = mdg_accept(socket->handle, patience(socket), &link);
        if (code < 0)
            return failed(code);
    }
    accepted = made(CONNECTED, link);
    if (accepted < 0)
        mdg_close(link);
    return accepted;
}

ssize_t vio_kept(struct socket *socket, void *bytes, size_t length)
{
    size_t count;

    if (socket->in)
        return fail(EBUSY, "another thread polls it");
    if (socket->read < socket->length) {
        count = socket->length - socket->read < length ? socket->length - socket->read : length;
        memcpy(bytes, socket->bytes + socket->read, count);
        socket->read += count;
        return (ssize_t)count;
    }
    if (socket->has_result) {
        /* The end stays one; an error is told once, and the end is behind it. */
        int64_t result = socket->result;
        socket->result = 0;
        return result < 0 ? failed(result) : 0;
    }
    return -2;
}

ssize_t vio_read(int vio, void *bytes, size_t length)
{
    struct socket *socket = vio_connected(vio);
    ssize_t kept = socket ? vio_kept(socket, bytes, length) : -1;
    int64_t got;

    if (kept != -2)
        return kept;
    got = mdg_read(socket->handle, bytes, length, patience(socket));
    return got < 0 ? failed(got) : (ssize_t)got;
}

/* Whether a write that does not block is over; -1: it failed. */
static int is_written(struct socket *socket, int64_t timeout)
{
    int64_t result;
    int code;

    if (!socket->out)
        return 1;
    code = mdg_wait(socket->out, timeout, &result);
    if (code == 0)
        return 0;
    socket->out = 0;
    return code < 0 ? failed(code) : result < 0 ? failed(result) : 1;
}

/* Copies as much as there is room for, to be written while others go on. */
static ssize_t write_behind(struct socket *socket, const void *bytes, size_t length)
{
    size_t count = length < BUFFER ? length : BUFFER;
    int code;

    if (!socket->left && !(socket->left = malloc(BUFFER)))
        return fail(ENOMEM, "no memory");
    memcpy(socket->left, bytes, count);
    code = mdg_post_write(socket->handle, socket->left, count, NULL, NULL, &socket->out);
    if (code < 0)
        return failed(code);
    return is_written(socket, 0) < 0 ? -1 : (ssize_t)count;
}

ssize_t vio_write(int vio, const void *bytes, size_t length)
{
    struct socket *socket = vio_connected(vio);
    int64_t wrote;
    int over;

    if (!socket)
        return -1;
    over = is_written(socket, patience(socket));
    if (over <= 0)
        return over < 0 ? -1 : fail(EAGAIN, "what was written before has not gone");
    if (length == 0)
        return 0;
    if (!socket->blocks)
        return write_behind(socket, bytes, length);
    wrote = mdg_write(socket->handle, bytes, length, MDG_FOREVER);
    return wrote < 0 ? failed(wrote) : (ssize_t)wrote;
}

int vio_close(int vio)
{
    struct socket *socket = socket_of(vio, FREE);

    if (!socket)
        return -1;
    if (socket->in)
        return fail(EBUSY, "another thread polls it");
    pthread_mutex_lock(&lock);
    __atomic_store_n(&table[vio - VIO_FIRST], NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    if (socket->out)
        is_written(socket, MDG_FOREVER);
    if (socket->kind == LISTENS && socket->has_result && socket->result > 0)
        mdg_close((mdg_handle)socket->result);
    if (socket->kind == CONNECTED) {
        mdg_op end;
        int64_t result;
        vaio_end_reads(socket);
        if (mdg_post_close(socket->handle, NULL, NULL, &end) == 0)
            mdg_wait(end, MDG_FOREVER, &result);
        vaio_end_writes(socket);
    }
    if (socket->handle)
        mdg_close(socket->handle);
    pthread_mutex_destroy(&socket->writing);
    free(socket->bytes);
    free(socket->left);
    free(socket);
    return 0;
}

/* A read or an accept has ended with this. */
static void arrived(struct socket *socket, int64_t result)
{
    socket->in = 0;
    if (socket->kind == CONNECTED && result > 0) {
        socket->read = 0;
        socket->length = (size_t)result;
    } else {
        socket->result = result;
        socket->has_result = 1;
    }
}

/* What poll(2) would say of it now. */
static short ready(struct socket *socket, short events)
{
    short revents = 0;
    int64_t result;

    if (socket->kind == FRESH)
        return POLLHUP;
    if (socket->in && mdg_test(socket->in, &result) == 1)
        arrived(socket, result);
    if (socket->read < socket->length || socket->has_result)
        revents |= events & POLLIN;
    if (socket->kind == CONNECTED && (events & POLLOUT)) {
        int over = is_written(socket, 0);
        revents |= over < 0 ? POLLERR : over > 0 ? POLLOUT : 0;
    }
    return revents;
}

/* Has the engine say when there is something to read, or to accept. */
static int expect(struct socket *socket)
{
    if (socket->in || socket->read < socket->length || socket->has_result)
        return 0;
    if (socket->kind == LISTENS)
        return mdg_post_accept(socket->handle, NULL, NULL, &socket->in);
    if (socket->kind != CONNECTED)
        return 0;
    if (!socket->bytes && !(socket->bytes = malloc(BUFFER)))
        return MDG_EFULL;
    return mdg_post_read(socket->handle, socket->bytes, BUFFER, NULL, NULL, &socket->in);
}

/* What was not to be waited for any longer. */
static void forget(struct socket *socket)
{
    int64_t result;

    if (!socket->in)
        return;
    if (mdg_test(socket->in, &result) == 1) {
        arrived(socket, result);
        return;
    }
    result = mdg_cancel(socket->in);
    socket->in = 0;
    if (socket->kind == CONNECTED && result > 0)
        arrived(socket, result);
}

static struct socket *polled(const struct pollfd *one)
{
    if (one->fd < VIO_FIRST || one->fd >= VIO_FIRST + MOST)
        return NULL;
    return __atomic_load_n(&table[one->fd - VIO_FIRST], __ATOMIC_ACQUIRE);
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* One look at all of them, which waits for the descriptors, and for the engine's, at most so long. How many are ready. */
static int look(struct pollfd *all, struct pollfd *kernel, unsigned long count, int timeout_ms)
{
    unsigned long at;
    int found = 0;

    for (at = 0; at < count; at++) {
        kernel[at] = all[at];
        if (all[at].fd >= VIO_FIRST)
            kernel[at].fd = -1;
    }
    kernel[count].fd = timeout_ms == 0 ? -1 : mdg_fd(vio_runtime);
    kernel[count].events = POLLIN;
    if (poll(kernel, count + 1, timeout_ms) < 0)
        return -1;
    mdg_turn(vio_runtime, 0);
    vaio_look();
    for (at = 0; at < count; at++) {
        struct socket *socket = polled(&all[at]);
        if (all[at].fd < VIO_FIRST)
            all[at].revents = kernel[at].revents;
        else
            all[at].revents = socket ? ready(socket, all[at].events) : POLLNVAL;
        found += all[at].revents != 0;
    }
    return found;
}

/* How long to wait for the engine: a write that goes on has to be looked at now and then, for it tells by no descriptor. */
static int slice(int64_t left)
{
    return left < 0 || left > 1000 ? 1000 : (int)left;
}

static int wait_for(struct pollfd *all, struct pollfd *kernel, unsigned long count, int timeout_ms)
{
    int64_t end = timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;
    int found = look(all, kernel, count, 0);

    while (found == 0) {
        int64_t left = timeout_ms < 0 ? -1 : end - now_ms();
        if (timeout_ms >= 0 && left <= 0)
            break;
        found = look(all, kernel, count, slice(left));
    }
    return found;
}

int vio_poll(struct pollfd *all, unsigned long count, int timeout_ms)
{
    struct pollfd *kernel;
    unsigned long at;
    int found = 0, code = 0;

    pthread_once(&once, open_runtime);
    kernel = calloc(count + 1, sizeof *kernel);
    if (!opened || !kernel) {
        free(kernel);
        return fail(opened ? ENOMEM : EIO, "no memory, or no runtime");
    }
    for (at = 0; at < count && code >= 0; at++) {
        struct socket *socket = polled(&all[at]);
        if (socket && (all[at].events & POLLIN))
            code = expect(socket);
    }
    found = code < 0 ? failed(code) : wait_for(all, kernel, count, timeout_ms);
    for (at = 0; at < count; at++) {
        struct socket *socket = polled(&all[at]);
        if (socket)
            forget(socket);
    }
    free(kernel);
    return found;
}
