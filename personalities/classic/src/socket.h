/* What vio.c and vaio.c share: a vio socket. */
#ifndef SOCKET_H
#define SOCKET_H

#include <madrigal.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

enum kind { FREE, FRESH, LISTENS, CONNECTED };

struct vaiocb;

/* Requests of one direction that are under way, in their order; whether the last one did not wait; its place among those that have any. */
struct lane {
    struct vaiocb *first, *last;
    int is_quick;
    struct lane *before, *next;
};

struct socket {
    enum kind kind;
    int blocks;
    mdg_handle handle;
    /* A read or an accept that a poll has posted; a write that goes on. 0: none. */
    mdg_op in, out;
    /* Bytes that came while nobody read, from `read` on; a connection that came, or an error or the end, which is told once they are read. */
    char *bytes;
    size_t read, length;
    int64_t result;
    int has_result;
    /* What a write that does not block has left. */
    char *left;
    /* What vaio_read() and vaio_write() have asked for. */
    struct lane reads, writes;
    /* Held while vaio_write() asks. */
    pthread_mutex_t writing;
};

/* Of vio.c. Its runtime, once there is a socket; a socket that is connected, or NULL and errno; the errno of an error of Madrigal's. */
extern mdg_runtime vio_runtime;
struct socket *vio_connected(int vio);
int vio_errno(int64_t code);
/* What a poll has read, as vio_read() returns it, or -2: nothing lies there. */
ssize_t vio_kept(struct socket *socket, void *bytes, size_t length);

/* Of lanes.c. Ends reads that wait; tells what came of writes, all of which are over; looks for those whose end is told by a signal. */
void vaio_end_reads(struct socket *socket);
void vaio_end_writes(struct socket *socket);
void vaio_look(void);

#pragma GCC visibility pop

#endif
