/*
 * Vio: the calls of sockets on Madrigal's links, with a `vio_` in front.
 *
 * A vio socket is an int that is no descriptor: vio_poll() takes both. An address is a text of Madrigal's: tcp://HOST:PORT, shm://NAME,
 * loopback://NAME, or a card (mdg_serve(), madrigal.h). As sockets do, functions return -1 and set errno; vio_error_text() says more.
 *
 * Several threads may use different vio sockets, and one may read while another one writes the same. A socket whose poll another thread
 * sleeps in is not read or accepted from meanwhile (EBUSY).
 *
 * Link: pkg-config --cflags --libs madrigal-classic. docs/personalities.md.
 */
#ifndef VIO_H
#define VIO_H

#include <poll.h>
#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Vio sockets are numbered from here on; less is a descriptor. */
#define VIO_FIRST (1 << 24)

/* A new socket. EMFILE: 4096 are open. */
int vio_socket(void);
/* Begins to listen there. EADDRINUSE, EINVAL (no address). */
int vio_listen(int vio, const char *address);
/* Copies the address of a socket that listens, as others connect to it; how long it is. */
int vio_address(int vio, char *address, size_t size);
/* The next connection, as a new socket. EAGAIN: none, and it does not block. */
int vio_accept(int vio);
/* Connects; waits until it is decided, whether it blocks or not. ECONNREFUSED, ETIMEDOUT, EINVAL (no address). */
int vio_connect(int vio, const char *address);
/* As recv(2) and send(2): 0 at the end of the stream; EPIPE, ECONNRESET; EAGAIN where it does not block. No SIGPIPE. */
ssize_t vio_read(int vio, void *bytes, size_t length);
ssize_t vio_write(int vio, const void *bytes, size_t length);
/* Whether its calls block; they do at first. */
int vio_set_blocking(int vio, int blocks);
/* Closes it: what was written arrives, then the end. */
int vio_close(int vio);

/* As poll(2), of vio sockets and descriptors together. */
int vio_poll(struct pollfd *all, unsigned long count, int timeout_ms);

/* What went wrong in this thread's last call that failed. */
const char *vio_error_text(void);

#ifdef __cplusplus
}
#endif

#endif
