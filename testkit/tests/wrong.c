/* A driver that keeps no rule: what is wrong with it is said by the compiler's flags, or by the address. */
#include "madrigal-driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#ifndef ABI
#define ABI MADRIGAL_DRIVER_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(struct madrigal_driver)
#endif
#ifndef NAME
#define NAME "wrong"
#endif
#ifndef FLAGS
#define FLAGS 0
#endif
#ifndef WRITE
#define WRITE write_parts
#endif
#ifndef PACKET
#define PACKET 0
#endif

struct madrigal_listener {
	int fd;
	char how[64];
};

struct madrigal_connection {
	int fd;
	char how[64];
};

static int is(const char *how, const char *what)
{
	return strcmp(how, what) == 0;
}

static int is_usable(const struct madrigal_place *place, char *why)
{
	if (strstr(place->directory, "unusable")) {
		strcpy(why, "there is no such network");
		return -ENODEV;
	}
	if (strstr(place->directory, "endless")) {
		memset(why, 'x', MADRIGAL_TEXT_ROOM);
		return -ENODEV;
	}
	return strstr(place->directory, "positive") ? 3 : 0;
}

static int listen_at(const struct madrigal_place *place, const char *how, struct madrigal_listener **made, char *real)
{
	(void)place;
	if (is(how, "listen-positive"))
		return 7;
	if (is(how, "listen-huge"))
		return -5000;
	if (is(how, "listen-nothing"))
		return 0;
	if (is(how, "listen-endless"))
		memset(real, 'x', MADRIGAL_TEXT_ROOM);
	if (is(how, "listen-nowhere"))
		strcpy(real, "../..");
	struct madrigal_listener *listener = calloc(1, sizeof *listener);
	listener->fd = is(how, "listen-closed") ? 1000000 : is(how, "listen-none") ? -1 : eventfd(0, EFD_CLOEXEC);
	strcpy(listener->how, how);
	*made = listener;
	return 0;
}

static int connection(const char *how, struct madrigal_connection **made)
{
	struct madrigal_connection *connection = calloc(1, sizeof *connection);
	connection->fd = is(how, "connect-none") ? -1 : eventfd(0, EFD_CLOEXEC);
	strcpy(connection->how, how);
	*made = connection;
	return 0;
}

static int accept_next(struct madrigal_listener *listener, struct madrigal_connection **made, char *peer)
{
	if (is(listener->how, "accept-nothing"))
		return 0;
	if (is(listener->how, "accept-peer"))
		strcpy(peer, "no address at all");
	return connection(listener->how, made);
}

static int listener_descriptor(struct madrigal_listener *listener)
{
	return listener->fd;
}

static void listener_close(struct madrigal_listener *listener)
{
	if (listener->fd >= 0 && listener->fd < 1000000)
		close(listener->fd);
	free(listener);
}

static int connect_to(const struct madrigal_place *place, const char *how, struct madrigal_connection **made)
{
	(void)place;
	if (is(how, "connect-nothing"))
		return 0;
	int done = connection(how, made);
	return is(how, "connect-pending") ? -EINPROGRESS : done;
}

static int descriptor(struct madrigal_connection *connection)
{
	return connection->fd;
}

static ssize_t read_some(struct madrigal_connection *connection, void *buffer, size_t len)
{
	if (len)
		*(char *)buffer = 1;
	if (is(connection->how, "read-more"))
		return (ssize_t)len + 1;
	return is(connection->how, "read-huge") ? -5000 : -EAGAIN;
}

static ssize_t write_parts(struct madrigal_connection *connection, const struct iovec *parts, size_t count)
{
	size_t len = 0;

	for (size_t i = 0; i < count; i++)
		len += parts[i].iov_len;
	if (is(connection->how, "write-nothing"))
		return 0;
	return is(connection->how, "write-more") ? (ssize_t)len + 1 : -EAGAIN;
}

/* Not used by every one. */
ssize_t (*const kept)(struct madrigal_connection *, const struct iovec *, size_t) = write_parts;

static void close_connection(struct madrigal_connection *connection)
{
	if (connection->fd >= 0)
		close(connection->fd);
	free(connection);
}

#if defined(ABSENT)
#elif defined(SHORT)
const struct {
	uint32_t abi, size;
	char name[MADRIGAL_NAME_ROOM];
} driver __asm__("madrigal_driver") = { ABI, SIZE, NAME };
#elif defined(COMPUTED)
struct madrigal_driver driver __asm__("madrigal_driver");
#else
#if defined(UNDEFINED)
int nobody_defines(const struct madrigal_place *place, char *why);
#define USABLE nobody_defines
#else
#define USABLE is_usable
#endif
const struct madrigal_driver madrigal_driver = {
	.abi = ABI,
	.size = SIZE,
	.name = NAME,
	.flags = FLAGS,
	.usable = USABLE,
	.listen = listen_at,
	.accept = accept_next,
	.listener_descriptor = listener_descriptor,
	.listener_close = listener_close,
	.connect = connect_to,
	.descriptor = descriptor,
	.read = read_some,
	.write = WRITE,
	.release = PACKET,
	.close = close_connection,
};
#endif
