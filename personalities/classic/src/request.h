/* What vaio.c, lanes.c and notice.c share: a request, a list of them, and who is told of their end. */
#ifndef REQUEST_H
#define REQUEST_H

#include "socket.h"
#include "vaio.h"

#include <pthread.h>

#pragma GCC visibility push(hidden)

/* Of a control block. What was zeroed is idle. */
enum state { IDLE, UNDER_WAY, OVER };

/* A thread that is to call a function. */
struct notice;

/* The requests of one vlio_listio(): how many are not over, and one more until all were asked for; how many failed. */
struct list {
    int left, failed;
    /* Of LIO_NOWAIT, which lies in memory of its own. */
    int is_kept;
    struct sigevent how;
    struct notice *notice;
};

/* How many were taken back, and how many writes of which a part had gone. */
struct canceled {
    int canceled, cut;
};

/* Guards lanes, lists and notices. Held at the call where nothing else is said. */
extern pthread_mutex_t vaio_lock;

/* Of lanes.c. */
static inline enum state vaio_state(const struct vaiocb *block)
{
    return (enum state)__atomic_load_n(&block->vaio_own.state, __ATOMIC_ACQUIRE);
}

/* Without the lock: tries a request on a link. 1: it is over, with *result bytes. 0: it is to be posted. */
int vaio_try(struct vaiocb *block, struct socket *socket, int writes, int64_t *result);
/* Posts it. 1: it is over, with *result; 0: it goes on. Negative: Madrigal's code, and nothing is posted. */
int vaio_post(struct vaiocb *block, struct socket *socket, int writes, int64_t *result);
/* What a result of Madrigal's is; 0: no error. The lock need not be held. */
int vaio_errno(int64_t result);
/* A request is over. The block may be gone when this returns. */
void vaio_ends(struct vaiocb *block, ssize_t result, int error);
/* As the last one, for a request of which nobody is told; the lock need not be held. */
void vaio_ends_quietly(struct vaiocb *block, ssize_t result, int error);
/* One of a list's requests is over, or all were asked for. */
void vaio_list_ends(struct list *list, int failed);
/* Those that wait look again. */
void vaio_wake(void);
/* Takes one back, if it is under way, or all of a lane. */
void vaio_take_back(struct vaiocb *block, struct canceled *count);
void vaio_take_back_all(struct lane *lane, struct canceled *count);
/* Without the lock: looks whether one is over, and for those whose end is told. */
void vaio_look_at(const struct vaiocb *block);
/* Without the lock: waits until `is_over`, asked with the lock, or a time of vaio_now() has come; INT64_MAX: without end. What `is_over` said. */
int vaio_wait(int (*is_over)(const void *), const void *what, int64_t end);
int64_t vaio_now(void);

/* Of notice.c. Whether that is a way to be told; whether nobody is. */
int vaio_is_known(const struct sigevent *how);
static inline int vaio_is_quiet(const struct sigevent *how)
{
    return how->sigev_notify == SIGEV_NONE || (how->sigev_notify == SIGEV_SIGNAL && how->sigev_signo == 0);
}
/* Without the lock: starts the thread of SIGEV_THREAD; of others there is none. 0, or EAGAIN. */
int vaio_start(const struct sigevent *how, struct notice **notice);
static inline int vaio_begin_notice(const struct sigevent *how, struct notice **notice)
{
    *notice = NULL;
    return how->sigev_notify == SIGEV_THREAD ? vaio_start(how, notice) : 0;
}
/* Tells it; or lets the thread go that has nothing to tell. */
void vaio_tell(const struct sigevent *how, struct notice *notice);
void vaio_forget(struct notice *notice);

#pragma GCC visibility pop

#endif
