/*
 * Vaio: the calls of <aio.h> (POSIX.1-2024) with a `v` in front, on Madrigal's links and on files. They live beside <aio.h>, whose constants
 * they use, in one program.
 *
 * A descriptor is a vio socket that is connected (vio.h), or a descriptor of a file. On a link aio_offset counts for nothing: reads are
 * served in the order they were asked for, and so are writes. A read ends with what has come, a write when all bytes were taken.
 * On a file aio_offset counts, and with O_APPEND a write goes to the end. Other descriptors are refused with ESPIPE.
 *
 * A control block is zeroed before it is first used. From a call that returns 0 until the request is over, the block and the bytes at
 * aio_buf are the library's; from then on they are the program's. Sizes are bytes. Functions return -1 and set errno;
 * vio_error_text() says more of links. Any thread may call any function.
 *
 * What differs from <aio.h>, and why:
 * - No thread is started for a transfer. One on a link goes on, and its end is told, while some thread of the program is in
 *   vaio_suspend(), vlio_listio() that waits, vaio_error() of a request that is under way, or vio_poll(). A program that computes calls
 *   vaio_error() now and then.
 * - A transfer of a file, and vaio_fsync(), is over when the call that asks for it returns: it may wait for the disk.
 * - SIGEV_THREAD starts the thread it asks for with the request, not at its end: it waits for it, so that the transfer goes on.
 * - Waits go on behind a signal: there is no EINTR. In a signal handler vaio_error(), vaio_return() and vaio_suspend() may be called for
 *   requests that are over, such as those the signal was sent for, and nothing else.
 * - vio_close() ends reads that wait, with ECANCELED, and waits until writes are over.
 * - Priorities count for nothing.
 *
 * Link: pkg-config --cflags --libs madrigal-classic. docs/personalities.md.
 */
#ifndef VAIO_H
#define VAIO_H

#include <aio.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>
#include <vio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct vaiocb {
    /* A vio socket, or a descriptor. */
    int aio_fildes;
    /* Where in a file. */
    off_t aio_offset;
    /* The bytes, and how many. */
    volatile void *aio_buf;
    size_t aio_nbytes;
    /* 0 or more. */
    int aio_reqprio;
    /* How the end is told: SIGEV_NONE, SIGEV_SIGNAL (si_code is SI_ASYNCIO; signal 0: not at all), SIGEV_THREAD. */
    struct sigevent aio_sigevent;
    /* For vlio_listio(): LIO_READ, LIO_WRITE, LIO_NOP. */
    int aio_lio_opcode;
    /* The library's. */
    struct {
        int state, error, writes;
        ssize_t result;
        size_t done;
        uint64_t op;
        void *lane, *list, *notice;
        struct vaiocb *before, *next;
    } vaio_own;
};

/*
 * Ask for a read into aio_buf, or a write from it. Do not block on a link. 0: it was taken, and vaio_error() says what came of it. EAGAIN (too
 * much is under way, or no thread for SIGEV_THREAD), EBADF (no such descriptor, or not open for that), ENOTCONN, EBUSY (another thread
 * is in vio_poll() for the socket), ESPIPE, EINVAL (the offset, the size, the priority, the sigevent; the block is under way).
 */
int vaio_read(struct vaiocb *block);
int vaio_write(struct vaiocb *block);
/* Asks that what was written to a file before is on the disk: `op` is O_SYNC or O_DSYNC. EBADF, EAGAIN; EINVAL (also of a link). */
int vaio_fsync(int op, struct vaiocb *block);

/*
 * What came of a request: 0, EINPROGRESS (it is under way), ECANCELED, or what read(2), write(2), fsync(2) fail with; on a link
 * EPIPE, ECONNRESET. Looks, does not block. -1, EINVAL: nothing was asked for with this block, or vaio_return() was called.
 */
int vaio_error(const struct vaiocb *block);
/* Once for each request that is over: bytes, 0 at the end of the stream, or -1 with errno as vaio_error(). EINVAL; EINPROGRESS. */
ssize_t vaio_return(struct vaiocb *block);

/*
 * Waits until one of these requests is over; NULL is passed over. `timeout` is from now, and NULL without end; nothing is canceled by it.
 * EAGAIN: the time has passed. EINVAL: `count` or the time.
 */
int vaio_suspend(const struct vaiocb *const list[], int count, const struct timespec *timeout);

/*
 * Takes back a request, or with NULL all requests of a descriptor. Does not block. Those that were taken back end with ECANCELED, and this is
 * told as any end. AIO_CANCELED: all of them; AIO_ALLDONE: all were over; AIO_NOTCANCELED: of some write a part had gone: it is over
 * now, and vaio_return() has the length of that part. No byte that was read is lost. EBADF; EINVAL: the block is of another one.
 */
int vaio_cancel(int fildes, struct vaiocb *block);

/*
 * Asks for each request of a list; NULL and LIO_NOP are passed over. LIO_WAIT: waits until all are over, and `sig` counts for nothing.
 * LIO_NOWAIT: `sig` (NULL: nothing) is told when all are over. EIO: some failed, or were refused; vaio_error() of each says why, and the others
 * go on. EAGAIN: some were refused with that, or no memory. EINVAL, and nothing was asked for: `mode`, `count`, `sig`.
 */
int vlio_listio(int mode, struct vaiocb *const list[], int count, struct sigevent *sig);

#ifdef __cplusplus
}
#endif

#endif
