/* How the end of a request is told: by a signal, or by a thread that was started with it. */
#define _GNU_SOURCE

#include "request.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WAITS, TELLS, FORGETS };

struct notice {
    void (*function)(union sigval);
    union sigval value;
    int is;
};

int vaio_is_known(const struct sigevent *how)
{
    switch (how->sigev_notify) {
    case SIGEV_NONE:
        return 1;
    case SIGEV_SIGNAL:
        return how->sigev_signo >= 0 && how->sigev_signo <= SIGRTMAX;
    case SIGEV_THREAD:
        return how->sigev_notify_function != NULL;
    default:
        return 0;
    }
}

static int is_decided(const void *notice)
{
    return ((const struct notice *)notice)->is != WAITS;
}

/* The thread: its transfer goes on meanwhile. */
static void *wait_and_tell(void *its)
{
    struct notice notice;

    vaio_wait(is_decided, its, INT64_MAX);
    notice = *(struct notice *)its;
    free(its);
    if (notice.is == TELLS)
        notice.function(notice.value);
    return NULL;
}

int vaio_start(const struct sigevent *how, struct notice **notice)
{
    pthread_attr_t *attributes = how->sigev_notify_attributes;
    pthread_t thread;
    int detached = PTHREAD_CREATE_JOINABLE;

    if (!(*notice = calloc(1, sizeof **notice)))
        return EAGAIN;
    (*notice)->function = how->sigev_notify_function;
    (*notice)->value = how->sigev_value;
    if (attributes)
        pthread_attr_getdetachstate(attributes, &detached);
    if (pthread_create(&thread, attributes, wait_and_tell, *notice) != 0) {
        free(*notice);
        return EAGAIN;
    }
    /* It does not end before the caller has decided. */
    if (detached == PTHREAD_CREATE_JOINABLE)
        pthread_detach(thread);
    return 0;
}

static void send_signal(const struct sigevent *how)
{
    siginfo_t info;
    int number = errno;

    memset(&info, 0, sizeof info);
    info.si_signo = how->sigev_signo;
    info.si_code = SI_ASYNCIO;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value = how->sigev_value;
    /* Where too many wait to be queued: without the value. */
    if (syscall(SYS_rt_sigqueueinfo, getpid(), how->sigev_signo, &info) < 0)
        kill(getpid(), how->sigev_signo);
    errno = number;
}

static void decide(struct notice *notice, int is)
{
    notice->is = is;
    vaio_wake();
}

void vaio_tell(const struct sigevent *how, struct notice *notice)
{
    if (notice)
        decide(notice, TELLS);
    else if (!vaio_is_quiet(how))
        send_signal(how);
}

void vaio_forget(struct notice *notice)
{
    if (notice)
        decide(notice, FORGETS);
}
