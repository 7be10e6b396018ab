/* Requests on links that are under way: who looks after them, and who waits for them. */
#define _GNU_SOURCE

#include "request.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define SECOND 1000000000LL
/*
 * How long one sleep is, at first and at most; twice as long as the last one where nothing happened. A thread in a call of vio.h turns the
 * engine, too, and may see a request through between another one's look and its sleep, which nobody is told of.
 */
#define SHORTEST 100000
#define LONGEST (SECOND / 10)

pthread_mutex_t vaio_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Something is over, or nobody turns the engine for those that wait. */
static pthread_cond_t changed;
/* Lanes with requests. */
static struct lane *active;
/* A thread turns the engine; the others that wait are behind it. */
static int turning;
/* Requests whose end is told. */
static int told;
static int64_t slice = SHORTEST;

static void begin(void)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
}

int64_t vaio_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

void vaio_wake(void)
{
    pthread_once(&once, begin);
    pthread_cond_broadcast(&changed);
    if (turning)
        mdg_call(vio_runtime);
}

/* A request waits for its turn. */
static void goes_on(struct vaiocb *block, struct lane *lane)
{
    block->vaio_own.lane = lane;
    block->vaio_own.before = lane->last;
    block->vaio_own.next = NULL;
    if (lane->last) {
        lane->last->vaio_own.next = block;
    } else {
        __atomic_store_n(&lane->first, block, __ATOMIC_RELAXED);
        lane->before = NULL;
        lane->next = active;
        if (active)
            active->before = lane;
        active = lane;
    }
    lane->last = block;
    if (!vaio_is_quiet(&block->aio_sigevent) || block->vaio_own.list)
        __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED);
    if (!turning)
        vaio_wake();
}

int vaio_try(struct vaiocb *block, struct socket *socket, int writes, int64_t *result)
{
    struct lane *lane = writes ? &socket->writes : &socket->reads;
    void *bytes = (void *)(uintptr_t)block->aio_buf;

    block->vaio_own.done = 0;
    /* What has to wait is asked for once: a read is tried where the last one did not wait. */
    if (__atomic_load_n(&lane->first, __ATOMIC_RELAXED) || !(writes || __atomic_load_n(&lane->is_quick, __ATOMIC_RELAXED)))
        return 0;
    if (!writes)
        return (*result = mdg_read(socket->handle, bytes, block->aio_nbytes, 0)) >= 0;
    *result = mdg_write(socket->handle, bytes, block->aio_nbytes, 0);
    block->vaio_own.done = *result > 0 ? (size_t)*result : 0;
    return *result >= 0 && (size_t)*result == block->aio_nbytes;
}

int vaio_post(struct vaiocb *block, struct socket *socket, int writes, int64_t *result)
{
    struct lane *lane = writes ? &socket->writes : &socket->reads;
    size_t done = block->vaio_own.done, length = block->aio_nbytes - done;
    char *bytes = (char *)(uintptr_t)block->aio_buf + done;
    uint64_t *op = &block->vaio_own.op;
    int code;

    code = writes ? mdg_post_write(socket->handle, bytes, length, NULL, NULL, op)
                  : mdg_post_read(socket->handle, bytes, length, NULL, NULL, op);
    if (code == 0)
        code = mdg_test(*op, result);
    if (code == 1 && *result >= 0)
        *result += (int64_t)done;
    __atomic_store_n(&lane->is_quick, code == 1, __ATOMIC_RELAXED);
    if (code == 0)
        goes_on(block, lane);
    return code;
}

/* A request leaves its lane. */
static void leave(struct vaiocb *block)
{
    struct lane *lane = block->vaio_own.lane;
    struct vaiocb *before = block->vaio_own.before, *next = block->vaio_own.next;

    __atomic_store_n(before ? &before->vaio_own.next : &lane->first, next, __ATOMIC_RELAXED);
    *(next ? &next->vaio_own.before : &lane->last) = before;
    if (!lane->first) {
        *(lane->before ? &lane->before->next : &active) = lane->next;
        if (lane->next)
            lane->next->before = lane->before;
    }
    if (!vaio_is_quiet(&block->aio_sigevent) || block->vaio_own.list)
        __atomic_fetch_sub(&told, 1, __ATOMIC_RELAXED);
}

void vaio_ends_quietly(struct vaiocb *block, ssize_t result, int error)
{
    block->vaio_own.result = result;
    block->vaio_own.error = error;
    __atomic_store_n(&block->vaio_own.state, OVER, __ATOMIC_RELEASE);
}

void vaio_ends(struct vaiocb *block, ssize_t result, int error)
{
    struct list *list = block->vaio_own.list;
    struct notice *notice = block->vaio_own.notice;
    struct sigevent how = block->aio_sigevent;

    vaio_ends_quietly(block, result, error);
    vaio_tell(&how, notice);
    if (list)
        vaio_list_ends(list, error != 0);
    vaio_wake();
}

int vaio_errno(int64_t result)
{
    return result >= 0 ? 0 : result == MDG_ECLOSED ? ECANCELED : vio_errno(result);
}

void vaio_list_ends(struct list *list, int failed)
{
    list->failed += failed;
    if (--list->left > 0 || !list->is_kept)
        return;
    vaio_tell(&list->how, list->notice);
    free(list);
}

/* One that was posted is over. */
static void ends(struct vaiocb *block, int64_t result)
{
    vaio_ends(block, result < 0 ? -1 : (ssize_t)result + (ssize_t)block->vaio_own.done, vaio_errno(result));
}

/* Those in front that are over end. Asking for one behind would turn the engine in vain. */
static void look(struct lane *lane)
{
    struct vaiocb *block;
    int64_t result;
    int code;

    while ((block = lane->first) && (code = mdg_test(block->vaio_own.op, &result)) != 0) {
        leave(block);
        ends(block, code < 0 ? code : result);
    }
}

static void look_at_all(void)
{
    struct lane *lane, *next;

    for (lane = active; lane; lane = next) {
        next = lane->next;
        look(lane);
    }
}

void vaio_look(void)
{
    if (__atomic_load_n(&told, __ATOMIC_RELAXED) == 0)
        return;
    pthread_mutex_lock(&vaio_lock);
    look_at_all();
    pthread_mutex_unlock(&vaio_lock);
}

static void take_back(struct vaiocb *block, struct canceled *count)
{
    int64_t result = mdg_cancel(block->vaio_own.op);
    size_t all = block->vaio_own.done + (result > 0 ? (size_t)result : 0);

    leave(block);
    /* Of a write a part may have gone. */
    count->canceled += result == 0 && all == 0;
    count->cut += block->vaio_own.writes && result >= 0 && all > 0 && all < block->aio_nbytes;
    if (result == 0 && all == 0)
        vaio_ends(block, -1, ECANCELED);
    else
        ends(block, result);
}

void vaio_take_back(struct vaiocb *block, struct canceled *count)
{
    look(block->vaio_own.lane);
    if (vaio_state(block) == UNDER_WAY)
        take_back(block, count);
}

void vaio_take_back_all(struct lane *lane, struct canceled *count)
{
    look(lane);
    /* The last one first: nothing goes behind one that is cut. */
    while (lane->last)
        take_back(lane->last, count);
}

void vaio_end_reads(struct socket *socket)
{
    struct canceled count = {0, 0};

    pthread_mutex_lock(&vaio_lock);
    vaio_take_back_all(&socket->reads, &count);
    pthread_mutex_unlock(&vaio_lock);
}

void vaio_end_writes(struct socket *socket)
{
    struct canceled count = {0, 0};

    pthread_mutex_lock(&vaio_lock);
    vaio_take_back_all(&socket->writes, &count);
    pthread_mutex_unlock(&vaio_lock);
}

void vaio_look_at(const struct vaiocb *block)
{
    pthread_mutex_lock(&vaio_lock);
    if (vaio_state(block) == UNDER_WAY)
        look(block->vaio_own.lane);
    if (told > 0)
        look_at_all();
    pthread_mutex_unlock(&vaio_lock);
}

/* Turns the engine, without the lock; less than 0: it cannot be turned. */
static int64_t turn(int64_t end)
{
    int64_t left = end - vaio_now(), done;

    left = left < 0 ? 0 : left < slice ? left : slice;
    turning = 1;
    pthread_mutex_unlock(&vaio_lock);
    done = mdg_turn(vio_runtime, left);
    pthread_mutex_lock(&vaio_lock);
    turning = 0;
    slice = done != 0 ? SHORTEST : slice < LONGEST / 2 ? slice * 2 : LONGEST;
    return done;
}

/* Until something may have changed. One thread turns the engine, and the others sleep until it says so or goes. */
static void rest(int64_t end)
{
    struct timespec at;

    if (!turning && active) {
        if (turn(end) >= 0)
            return;
        /* That of a child that was forked: nothing will come. */
        end = vaio_now() + LONGEST < end ? vaio_now() + LONGEST : end;
    }
    at.tv_sec = (time_t)(end / SECOND);
    at.tv_nsec = (long)(end % SECOND);
    pthread_cond_timedwait(&changed, &vaio_lock, &at);
}

int vaio_wait(int (*is_over)(const void *), const void *what, int64_t end)
{
    int over;

    pthread_once(&once, begin);
    pthread_mutex_lock(&vaio_lock);
    if (!turning)
        slice = SHORTEST;
    for (;;) {
        if (!turning)
            look_at_all();
        if ((over = is_over(what)) || vaio_now() >= end)
            break;
        rest(end);
    }
    /* Somebody turns the engine for those that still wait. */
    if (!turning)
        pthread_cond_signal(&changed);
    pthread_mutex_unlock(&vaio_lock);
    return over;
}
