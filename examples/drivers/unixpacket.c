/* A driver of packets for Madrigal: Unix sockets. Compiled by  cc -std=gnu11 -shared -fPIC -o libunixpacket.so unixpacket.c  */
#include "unixsocket.h"

/* The longest packet. One byte more is in front of each: the kernel gives an empty packet as it gives the end. */
#define LONGEST 16384

static int listen_at(const struct madrigal_place *place, const char *name, struct madrigal_listener **made, char *real)
{
	(void)real;
	return begin_to_listen(SOCK_SEQPACKET, "packet", place, name, made);
}

static int accept_next(struct madrigal_listener *listener, struct madrigal_connection **made, char *peer)
{
	(void)peer;
	return accept_one(listener, 1 + LONGEST, made);
}

static int connect_to(const struct madrigal_place *place, const char *name, struct madrigal_connection **made)
{
	return connect_one(SOCK_SEQPACKET, "packet", 1 + LONGEST, place, name, made);
}

static int packet(struct madrigal_connection *connection, const void **bytes, size_t *len)
{
	if (!connection->has_packet) {
		ssize_t n = receive(connection, connection->packet, 1 + LONGEST);
		if (n <= 0)
			return (int)n;
		connection->has_packet = 1;
		connection->len = (size_t)n - 1;
	}
	*bytes = connection->packet + 1;
	*len = connection->len;
	return 1;
}

static void release(struct madrigal_connection *connection)
{
	connection->has_packet = 0;
}

static ssize_t write_packet(struct madrigal_connection *connection, const struct iovec *parts, size_t count)
{
	unsigned char whole[1 + LONGEST];
	size_t len = 1;

	whole[0] = 0;
	for (size_t i = 0; i < count; i++) {
		memcpy(whole + len, parts[i].iov_base, parts[i].iov_len);
		len += parts[i].iov_len;
	}
	struct iovec all = { .iov_base = whole, .iov_len = len };
	ssize_t n = send_parts(connection, &all, 1);
	return n > 0 ? n - 1 : n;
}

static size_t longest(struct madrigal_connection *connection)
{
	(void)connection;
	return LONGEST;
}

const struct madrigal_driver madrigal_driver = {
	.abi = MADRIGAL_DRIVER_ABI,
	.size = sizeof(struct madrigal_driver),
	.name = "unixpacket",
	.flags = MADRIGAL_BY_OUTPUT,
	.listen = listen_at,
	.accept = accept_next,
	.listener_descriptor = listener_descriptor,
	.listener_close = listener_close,
	.connect = connect_to,
	.descriptor = descriptor,
	.write = write_packet,
	.packet = packet,
	.release = release,
	.longest = longest,
	.close = close_connection,
};
