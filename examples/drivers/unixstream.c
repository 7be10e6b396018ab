/* A driver of streams for Madrigal: Unix sockets. Compiled by  cc -std=gnu11 -shared -fPIC -o libunixstream.so unixstream.c  */
#include "unixsocket.h"

static int listen_at(const struct madrigal_place *place, const char *name, struct madrigal_listener **made, char *real)
{
	(void)real;
	return begin_to_listen(SOCK_STREAM, "stream", place, name, made);
}

static int accept_next(struct madrigal_listener *listener, struct madrigal_connection **made, char *peer)
{
	(void)peer;
	return accept_one(listener, 0, made);
}

static int connect_to(const struct madrigal_place *place, const char *name, struct madrigal_connection **made)
{
	return connect_one(SOCK_STREAM, "stream", 0, place, name, made);
}

static ssize_t write_parts(struct madrigal_connection *connection, const struct iovec *parts, size_t count)
{
	return send_parts(connection, (struct iovec *)parts, count);
}

const struct madrigal_driver madrigal_driver = {
	.abi = MADRIGAL_DRIVER_ABI,
	.size = sizeof(struct madrigal_driver),
	.name = "unixstream",
	.flags = MADRIGAL_BY_OUTPUT,
	.listen = listen_at,
	.accept = accept_next,
	.listener_descriptor = listener_descriptor,
	.listener_close = listener_close,
	.connect = connect_to,
	.descriptor = descriptor,
	.read = receive,
	.write = write_parts,
	.close = close_connection,
};
