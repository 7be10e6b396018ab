/*
 * What both drivers here have in common: connected Unix sockets by abstract names, which end with their process. Only processes of one user
 * are joined: names are everybody's, so each end asks the kernel whose the other one is.
 */
#define _GNU_SOURCE
#include "madrigal-driver.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct madrigal_listener {
	int fd;
};

struct madrigal_connection {
	int fd;
	/* The peer has reset the connection. The kernel says so once, to whichever call comes first: a send that is made may be about to note it. */
	atomic_bool reset, sends;
	/* Of packets: the one in front, and whether there is one. */
	int has_packet;
	size_t len;
	unsigned char packet[];
};

/* The name DIRECTORY/KIND-NAME, without a file of that name. */
static int address_of(const struct madrigal_place *place, const char *kind, const char *name, struct sockaddr_un *to, socklen_t *len)
{
	size_t directory = strlen(place->directory), prefix = strlen(kind), rest = strlen(name);

	memset(to, 0, sizeof *to);
	to->sun_family = AF_UNIX;
	if (1 + directory + 1 + prefix + 1 + rest > sizeof to->sun_path)
		return -ENAMETOOLONG;
	char *at = to->sun_path + 1;
	memcpy(at, place->directory, directory);
	at += directory;
	*at++ = '/';
	memcpy(at, kind, prefix);
	at += prefix;
	*at++ = '-';
	memcpy(at, name, rest);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + directory + 1 + prefix + 1 + rest);
	return 0;
}

static int same_user(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof peer;

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

static int begin_to_listen(int type, const char *kind, const struct madrigal_place *place, const char *name,
			   struct madrigal_listener **made)
{
	struct sockaddr_un at;
	socklen_t len;
	int error = address_of(place, kind, name, &at, &len);

	if (error)
		return error;
	struct madrigal_listener *listener = malloc(sizeof *listener);
	if (!listener)
		return -ENOMEM;
	listener->fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&at, len) || listen(listener->fd, 4096)) {
		error = -errno;
		if (listener->fd >= 0)
			close(listener->fd);
		free(listener);
		return error;
	}
	*made = listener;
	return 0;
}

static int listener_descriptor(struct madrigal_listener *listener)
{
	return listener->fd;
}

static void listener_close(struct madrigal_listener *listener)
{
	close(listener->fd);
	free(listener);
}

/* A connection of this socket, which is closed where there is no memory. */
static int connection_of(int fd, size_t room, struct madrigal_connection **made)
{
	struct madrigal_connection *connection = calloc(1, sizeof *connection + room);

	if (!connection) {
		close(fd);
		return -ENOMEM;
	}
	connection->fd = fd;
	*made = connection;
	return 0;
}

static int accept_one(struct madrigal_listener *listener, size_t room, struct madrigal_connection **made)
{
	for (;;) {
		int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0 && same_user(fd))
			return connection_of(fd, room, made);
		if (fd >= 0)
			close(fd);
		else if (errno != EINTR && errno != ECONNABORTED)
			return -errno;
	}
}

static int connect_one(int type, const char *kind, size_t room, const struct madrigal_place *place, const char *name,
		       struct madrigal_connection **made)
{
	struct sockaddr_un to;
	socklen_t len;
	int error = address_of(place, kind, name, &to, &len);

	if (error)
		return error;
	int fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* Of Unix sockets a connect is decided at once. */
	if (connect(fd, (struct sockaddr *)&to, len))
		error = -errno;
	else if (!same_user(fd))
		error = -EPERM;
	if (error) {
		close(fd);
		return error;
	}
	return connection_of(fd, room, made);
}

static int descriptor(struct madrigal_connection *connection)
{
	return connection->fd;
}

static void close_connection(struct madrigal_connection *connection)
{
	close(connection->fd);
	free(connection);
}

/* The next bytes, or the next packet: how many, 0 for the end, or an error. */
static ssize_t receive(struct madrigal_connection *connection, void *buffer, size_t len)
{
	for (;;) {
		ssize_t n = recv(connection->fd, buffer, len, 0);
		if (n > 0)
			return n;
		if (n == 0) {
			while (atomic_load(&connection->sends))
				sched_yield();
			return atomic_load(&connection->reset) ? -ECONNRESET : 0;
		}
		/* What came before the reset is read first; then the kernel says that it is the end. */
		if (errno == ECONNRESET)
			atomic_store(&connection->reset, 1);
		else if (errno != EINTR)
			return -errno;
	}
}

static ssize_t send_parts(struct madrigal_connection *connection, struct iovec *parts, size_t count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };

	ssize_t n;

	atomic_store(&connection->sends, 1);
	do {
		n = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
		if (n < 0)
			n = -errno;
	} while (n == -EINTR);
	if (n == -ECONNRESET)
		atomic_store(&connection->reset, 1);
	atomic_store(&connection->sends, 0);
	return n;
}
