#define _GNU_SOURCE

#include "vaio.h"

#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum operation { READ, WRITE, SYNC, DATA_SYNC };

static int fail(int number)
{
    errno = number;
    return -1;
}

/* What is wrong with a block, or 0. */
static int wrong(const struct vaiocb *block)
{
    if (!block || vaio_state(block) == UNDER_WAY || block->aio_nbytes > SSIZE_MAX || block->aio_reqprio < 0)
        return EINVAL;
    return vaio_is_quiet(&block->aio_sigevent) || vaio_is_known(&block->aio_sigevent) ? 0 : EINVAL;
}

/* It begins: nobody else looks at it yet. 0, or EAGAIN. */
static int begin(struct vaiocb *block, int writes, struct list *list)
{
    struct notice *notice;

    if (vaio_begin_notice(&block->aio_sigevent, &notice) != 0)
        return EAGAIN;
    __atomic_store_n(&block->vaio_own.state, UNDER_WAY, __ATOMIC_RELAXED);
    block->vaio_own.writes = writes;
    block->vaio_own.list = list;
    block->vaio_own.notice = notice;
    return 0;
}

/* It was over at once. */
static void ends(struct vaiocb *block, ssize_t result, int error)
{
    if (vaio_is_quiet(&block->aio_sigevent) && !block->vaio_own.list) {
        vaio_ends_quietly(block, result, error);
        return;
    }
    pthread_mutex_lock(&vaio_lock);
    vaio_ends(block, result, error);
    pthread_mutex_unlock(&vaio_lock);
}

/* Nothing came of it: it is as if it had not been asked for. */
static int refused(struct vaiocb *block, int error)
{
    if (block->vaio_own.notice) {
        pthread_mutex_lock(&vaio_lock);
        vaio_forget(block->vaio_own.notice);
        pthread_mutex_unlock(&vaio_lock);
    }
    __atomic_store_n(&block->vaio_own.state, IDLE, __ATOMIC_RELAXED);
    return error;
}

/* Tries it, and posts what has to wait: 1, 0 or a code, as vaio_post(). */
static int try_or_post(struct vaiocb *block, struct socket *socket, int writes, int64_t *result)
{
    int over = vaio_try(block, socket, writes, result);

    if (over)
        return over;
    pthread_mutex_lock(&vaio_lock);
    over = vaio_post(block, socket, writes, result);
    pthread_mutex_unlock(&vaio_lock);
    return over;
}

static int post(struct vaiocb *block, struct socket *socket, int writes)
{
    int64_t result = 0;
    int over;

    /* Nothing of another thread's gets between the parts of a write. */
    if (writes)
        pthread_mutex_lock(&socket->writing);
    over = try_or_post(block, socket, writes, &result);
    if (writes)
        pthread_mutex_unlock(&socket->writing);
    if (over < 0)
        return refused(block, over == MDG_EFULL ? EAGAIN : vio_errno(over));
    if (over > 0)
        ends(block, result < 0 ? -1 : (ssize_t)result, vaio_errno(result));
    return 0;
}

static int on_link(struct vaiocb *block, int writes, struct list *list)
{
    struct socket *socket = vio_connected(block->aio_fildes);
    ssize_t kept;

    if (!socket || begin(block, writes, list) != 0)
        return socket ? EAGAIN : errno;
    kept = writes ? -2 : vio_kept(socket, (void *)(uintptr_t)block->aio_buf, block->aio_nbytes);
    if (kept == -2)
        return post(block, socket, writes);
    if (kept == -1 && errno == EBUSY)
        return refused(block, EBUSY);
    ends(block, kept, kept < 0 ? errno : 0);
    return 0;
}

/* Where a write begins: with O_APPEND anywhere, for the kernel writes at the end whatever it is told. */
static off_t place(const struct vaiocb *block, enum operation operation)
{
    int appends = operation == WRITE && block->aio_offset < 0 && (fcntl(block->aio_fildes, F_GETFL) & O_APPEND);

    return appends ? 0 : block->aio_offset;
}

static ssize_t transfer(const struct vaiocb *block, enum operation operation)
{
    void *bytes = (void *)(uintptr_t)block->aio_buf;
    ssize_t result;

    do {
        switch (operation) {
        case READ:
            result = pread(block->aio_fildes, bytes, block->aio_nbytes, place(block, operation));
            break;
        case WRITE:
            result = pwrite(block->aio_fildes, bytes, block->aio_nbytes, place(block, operation));
            break;
        case SYNC:
            result = fsync(block->aio_fildes);
            break;
        default:
            result = fdatasync(block->aio_fildes);
        }
    } while (result < 0 && errno == EINTR);
    return result;
}

/* A file's descriptor: done here, for there is no thread to do it. */
static int on_file(struct vaiocb *block, enum operation operation, struct list *list)
{
    int error = begin(block, operation == WRITE, list);
    ssize_t result;

    if (error)
        return error;
    result = transfer(block, operation);
    error = result < 0 ? errno : 0;
    if (error == EBADF || error == EINVAL || error == ESPIPE)
        return refused(block, error);
    ends(block, result, error);
    return 0;
}

/* 0: it was taken; or why not. */
static int ask(struct vaiocb *block, enum operation operation, struct list *list)
{
    int error = wrong(block);

    if (error)
        return error;
    if (block->aio_fildes < VIO_FIRST)
        return on_file(block, operation, list);
    return on_link(block, operation == WRITE, list);
}

static int answer(int error)
{
    return error ? fail(error) : 0;
}

int vaio_read(struct vaiocb *block)
{
    return answer(ask(block, READ, NULL));
}

int vaio_write(struct vaiocb *block)
{
    return answer(ask(block, WRITE, NULL));
}

int vaio_fsync(int op, struct vaiocb *block)
{
    if (!block || (op != O_SYNC && op != O_DSYNC))
        return fail(EINVAL);
    if (block->aio_fildes >= VIO_FIRST)
        return fail(vio_connected(block->aio_fildes) || errno != EBADF ? EINVAL : EBADF);
    return answer(ask(block, op == O_SYNC ? SYNC : DATA_SYNC, NULL));
}

int vaio_error(const struct vaiocb *block)
{
    if (!block)
        return fail(EINVAL);
    if (vaio_state(block) == UNDER_WAY)
        vaio_look_at(block);
    switch (vaio_state(block)) {
    case UNDER_WAY:
        return EINPROGRESS;
    case OVER:
        return block->vaio_own.error;
    default:
        return fail(EINVAL);
    }
}

ssize_t vaio_return(struct vaiocb *block)
{
    if (!block || vaio_state(block) != OVER)
        return fail(block && vaio_state(block) == UNDER_WAY ? EINPROGRESS : EINVAL);
    __atomic_store_n(&block->vaio_own.state, IDLE, __ATOMIC_RELAXED);
    if (block->vaio_own.error)
        errno = block->vaio_own.error;
    return block->vaio_own.result;
}

struct some {
    const struct vaiocb *const *list;
    int count;
};

static int one_is_over(const void *what)
{
    const struct some *some = what;
    int at;

    for (at = 0; at < some->count; at++)
        if (some->list[at] && vaio_state(some->list[at]) != UNDER_WAY)
            return 1;
    return 0;
}

int vaio_suspend(const struct vaiocb *const list[], int count, const struct timespec *timeout)
{
    struct some some = {list, count};
    int64_t end = INT64_MAX;

    if (count < 0 || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec > 999999999)))
        return fail(EINVAL);
    if (one_is_over(&some))
        return 0;
    /* Of centuries, none. */
    if (timeout && timeout->tv_sec < INT32_MAX)
        end = vaio_now() + timeout->tv_sec * 1000000000LL + timeout->tv_nsec;
    return vaio_wait(one_is_over, &some, end) ? 0 : fail(EAGAIN);
}

int vaio_cancel(int fildes, struct vaiocb *block)
{
    struct canceled count = {0, 0};
    struct socket *socket;

    if (block && block->aio_fildes != fildes)
        return fail(EINVAL);
    if (fildes < VIO_FIRST)
        return fcntl(fildes, F_GETFD) < 0 ? fail(EBADF) : AIO_ALLDONE;
    if (!(socket = vio_connected(fildes)))
        return errno == EBADF ? -1 : AIO_ALLDONE;
    pthread_mutex_lock(&vaio_lock);
    if (!block) {
        vaio_take_back_all(&socket->writes, &count);
        vaio_take_back_all(&socket->reads, &count);
    } else if (vaio_state(block) == UNDER_WAY) {
        vaio_take_back(block, &count);
    }
    pthread_mutex_unlock(&vaio_lock);
    return count.cut ? AIO_NOTCANCELED : count.canceled ? AIO_CANCELED : AIO_ALLDONE;
}

static int is_empty(const void *list)
{
    return ((const struct list *)list)->left == 0;
}

static int is_asked(const struct vaiocb *block)
{
    return block && block->aio_lio_opcode != LIO_NOP;
}

/* One entry of a list; what was refused is over with the reason. */
static int ask_one(struct vaiocb *block, struct list *list)
{
    int opcode = block->aio_lio_opcode, error = EINVAL;

    if (opcode == LIO_READ || opcode == LIO_WRITE)
        error = ask(block, opcode == LIO_READ ? READ : WRITE, list);
    if (error == 0)
        return 0;
    /* One that was under way before stays so. */
    if (vaio_state(block) != UNDER_WAY)
        vaio_ends_quietly(block, -1, error);
    pthread_mutex_lock(&vaio_lock);
    vaio_list_ends(list, 1);
    pthread_mutex_unlock(&vaio_lock);
    return error;
}

/* Asks for all, first those on links, which go on while files are read and written. 0, EAGAIN or EIO. */
static int ask_all(struct vaiocb *const all[], int count, struct list *list)
{
    int at, files, error, worst = 0;

    for (files = 0; files < 2; files++) {
        for (at = 0; at < count; at++) {
            if (!is_asked(all[at]) || (all[at]->aio_fildes < VIO_FIRST) != files)
                continue;
            error = ask_one(all[at], list);
            if (error)
                worst = error == EAGAIN && worst != EIO ? EAGAIN : EIO;
        }
    }
    return worst;
}

/* A list of LIO_NOWAIT, and its thread if one is to be told; NULL: EAGAIN. */
static struct list *kept(const struct list *here, const struct sigevent *sig)
{
    struct list *list = malloc(sizeof *list);

    if (!list)
        return NULL;
    *list = *here;
    list->is_kept = 1;
    list->how.sigev_notify = SIGEV_NONE;
    if (sig)
        list->how = *sig;
    if (vaio_begin_notice(&list->how, &list->notice) == 0)
        return list;
    free(list);
    return NULL;
}

int vlio_listio(int mode, struct vaiocb *const list[], int count, struct sigevent *sig)
{
    struct list here, *its = &here;
    int at, error;

    if ((mode != LIO_WAIT && mode != LIO_NOWAIT) || count < 0 || (mode == LIO_NOWAIT && sig && !vaio_is_known(sig)))
        return fail(EINVAL);
    memset(&here, 0, sizeof here);
    for (here.left = 1, at = 0; at < count; at++)
        here.left += is_asked(list[at]);
    if (mode == LIO_NOWAIT && !(its = kept(&here, sig)))
        return fail(EAGAIN);
    error = ask_all(list, count, its);
    pthread_mutex_lock(&vaio_lock);
    vaio_list_ends(its, 0);
    pthread_mutex_unlock(&vaio_lock);
    if (mode == LIO_NOWAIT)
        return answer(error);
    vaio_wait(is_empty, &here, INT64_MAX);
    return answer(error == EAGAIN ? EAGAIN : here.failed ? EIO : 0);
}
