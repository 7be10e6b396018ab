/*
 * Madrigal: drivers of your own. Version 1.
 *
 * A driver carries streams of bytes, or packets, between two processes. It is a shared object that defines one variable, `madrigal_driver`,
 * and a description beside it, NAME.toml, in a directory that MADRIGAL_DRIVERS names. examples/drivers has two whole ones.
 *
 *     listen --> struct madrigal_listener   -- accept -->  struct madrigal_connection
 *     connect ------------------------------------------>  struct madrigal_connection
 *
 * Both structures are the driver's: it defines and allocates them, and frees them in `listener_close` and `close`.
 *
 * Results. A number from 0 on is a result; -errno, from -1 to -4095, is an error, with the number of errno(3). Any other number, and what
 * else breaks a rule below, ends the operation with an error that names the rule.
 *
 * Waiting. No function blocks: what cannot be done now is -EAGAIN. Who will sleep calls `arm_read` or `arm_write`, then polls the descriptor,
 * and calls `woken` when that was reported.
 *
 * Threads. Any thread of the program calls these functions: `usable`, `listen` and `connect` several at once; one listener's by one thread
 * at a time; of one connection `read`, `arm_read`, `packet` and `release` by one thread at a time, `write` and `arm_write` by one thread at
 * a time, these two beside each other, and `woken` beside all of them. `listener_close` and `close` are the last call for what they end: no
 * other is under way. A driver locks what its connections share.
 *
 * The shared object is loaded when the driver is first needed, and unloaded when the last listener and connection are closed. No thread of
 * the driver's may be in its code then, and nothing in the program may refer to it: no handler of signals, no atexit(3). It calls nothing
 * of Madrigal's, and neither ends the program nor jumps or throws out of a function of its own.
 */
#ifndef MADRIGAL_DRIVER_H
#define MADRIGAL_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of all this. Another one is refused. */
#define MADRIGAL_DRIVER_ABI 1

/* Room for a name of a driver, and for a text that the driver writes: bytes, with the NUL at the end. */
#define MADRIGAL_NAME_ROOM 32
#define MADRIGAL_TEXT_ROOM 256

/* Room to write shows by the descriptor: poll it for output, too. */
#define MADRIGAL_BY_OUTPUT 1u
/* `read`, `packet` and `write` that find nothing make no system call, so that a waiter may look again and again before it sleeps. */
#define MADRIGAL_CHEAP 2u

struct madrigal_listener;
struct madrigal_connection;

/* Where the driver runs. Valid during the call. */
struct madrigal_place {
	/* Of this structure, in bytes. Later versions may be longer. */
	uint32_t size;
	uint32_t reserved;
	/* An absolute path: the directory through which processes of this user find each other. It may not be there yet: mode 0700. */
	const char *directory;
};

/* The variable `madrigal_driver` is a constant of this type. Its first three members are read from the file before it is loaded, so they
 * are not computed. Functions that are not marked "or NULL" must be there. */
struct madrigal_driver {
	/* MADRIGAL_DRIVER_ABI. */
	uint32_t abi;
	/* sizeof(struct madrigal_driver). */
	uint32_t size;
	/* The name in the description, and NULs behind it. */
	char name[MADRIGAL_NAME_ROOM];
	/* MADRIGAL_BY_OUTPUT, MADRIGAL_CHEAP. */
	uint32_t flags;
	uint32_t reserved;

	/* Whether the driver can work here: 0, or an error. A sentence in `why`, of up to MADRIGAL_TEXT_ROOM bytes with its NUL, is shown
	 * instead of the error's; it is empty before. Leaves nothing behind. Or NULL: it always can. */
	int (*usable)(const struct madrigal_place *place, char *why);

	/* Begins to listen at `address`, which is what stands behind NAME:// in a locator: a name, or ADDRESS:PORT where the description says so
	 * (an IPv6 address in brackets). Other processes can connect when it returns. `*made` is set with 0 only. The address that really
	 * is listened at, such as one with the port filled in, goes to `real`, MADRIGAL_TEXT_ROOM bytes that hold `address` before.
	 * -EADDRINUSE: somebody listens there. -EINVAL: no address of this driver's. */
	int (*listen)(const struct madrigal_place *place, const char *address, struct madrigal_listener **made, char *real);
	/* The next connection that waits: 0, with `*made` set. -EAGAIN: none waits; then what made the descriptor readable is taken out. The
	 * peer's address, if it is known, goes to `peer`, as above. Attempts that failed on the way are passed over. */
	int (*accept)(struct madrigal_listener *listener, struct madrigal_connection **made, char *peer);
	/* A descriptor that is readable while connections wait. Asked once; Madrigal polls a copy of it. */
	int (*listener_descriptor)(struct madrigal_listener *listener);
	/* Ends listening, and frees the listener. Connections that wait are refused; accepted ones stay. */
	void (*listener_close)(struct madrigal_listener *listener);

	/* Begins to connect: 0, or -EINPROGRESS where `connected` will tell; both set `*made`, any other result does not. What is written
	 * before the peer has accepted waits for it. -ECONNREFUSED: nobody listens there. -EAGAIN: too many wait there. -EINVAL: no
	 * address of this driver's. */
	int (*connect)(const struct madrigal_place *place, const char *address, struct madrigal_connection **made);
	/* How an attempt stands: 0, it has succeeded; -EAGAIN, not decided; any other error, it has failed, and only `close` follows. Called
	 * when the descriptor was reported. Or NULL, if `connect` never gives -EINPROGRESS. */
	int (*connected)(struct madrigal_connection *connection);

	/* A descriptor of the connection. It is polled edge-triggered for input and hang-up, from the moment the connection is there, and
	 * for output where the flags say so: it must have an edge whenever an end that was armed may find something, also where the peer
	 * has gone. Asked once; Madrigal polls a copy of it. */
	int (*descriptor)(struct madrigal_connection *connection);
	/* The descriptor was reported: takes out what made it readable, if that is no data. `ended` is not 0 where a hang-up or an error was
	 * reported: there is no further report of that. Or NULL. */
	void (*woken)(struct madrigal_connection *connection, int ended);
	/* No look at the reading (writing) end follows until the descriptor is reported. Not 0: there is something (there is room), look
	 * again instead; the end and an error are something, too. A `read` that gave less than there was room for, a `write` that took less
	 * than it was given, and -EAGAIN are followed by these, and by no further look before. Or NULL, where the descriptor tells all by
	 * itself, as one of a socket does, also what was there before. */
	int (*arm_read)(struct madrigal_connection *connection);
	int (*arm_write)(struct madrigal_connection *connection);

	/* A driver of streams has `read`, and no `packet`, `release` and `longest`. Copies up to `len` bytes, which is not 0, to `buffer`, which
	 * is the caller's: how many, 0 for the end, or -EAGAIN; the end and errors stay. All that the peer sent is read before them.
	 * -ECONNRESET: the peer died, or closed with bytes of ours unread; this end is told so even where `write` was told before. -EPROTO:
	 * the peer broke the driver's protocol. */
	ssize_t (*read)(struct madrigal_connection *connection, void *buffer, size_t len);
	/* Streams: takes bytes from the front of the parts, at least one: how many, or -EAGAIN. Packets: takes all parts as one packet: how many
	 * bytes, or -EAGAIN; never more than `longest`, possibly none. The memory is the caller's again when it returns. `count` is up to
	 * IOV_MAX; parts may be empty. -EPIPE or -ECONNRESET: the peer closed or died. */
	ssize_t (*write)(struct madrigal_connection *connection, const struct iovec *parts, size_t count);
	/* A driver of packets has these three, and no `read`. The packet in front: 1, with its bytes lent until `release`, the same ones until
	 * then; 0 for the end; -EAGAIN; errors as of `read`. */
	int (*packet)(struct madrigal_connection *connection, const void **bytes, size_t *len);
	/* The packet in front is given back. Called after `packet` has given one only. */
	void (*release)(struct madrigal_connection *connection);
	/* The longest packet, in bytes; more than 0. Asked once. */
	size_t (*longest)(struct madrigal_connection *connection);

	/* Closes the connection, or gives an attempt up, and frees it. The peer reads what was written, then the end, or -ECONNRESET where
	 * bytes that it had sent are dropped unread. */
	void (*close)(struct madrigal_connection *connection);
};

/* What a driver defines. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const struct madrigal_driver madrigal_driver;

#ifdef __cplusplus
}
#endif

#endif
