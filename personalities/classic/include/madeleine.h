/*
 * Madeleine's interface on Madrigal: messages of pieces, packed and unpacked one by one (Madeleine II and 3).
 *
 * A session is all processes that one launcher started (mpiexec of MPICH, `madrigal run`); a channel is known by its name in all of them.
 * Both ends of a message name the same pieces in the same order, with the same lengths and modes.
 *
 * Nothing here returns an error. What fails calls the handler of mad_set_error_handler(), with a text that names both ends; without one,
 * or when it returns, the text is printed and the process aborts, as Madeleine's own did.
 *
 * Link: pkg-config --cflags --libs madrigal-classic. docs/personalities.md.
 */
#ifndef MADELEINE_H
#define MADELEINE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mad_madeleine *p_mad_madeleine_t;
typedef struct mad_channel *p_mad_channel_t;
/* A message that is packed or unpacked. */
typedef struct mad_connection *p_mad_connection_t;

/* What a sender promises of a piece. */
typedef enum {
    /* Nothing: the bytes may change when mad_pack() returns. */
    mad_send_SAFER,
    /* What the bytes are at mad_end_packing() is sent. */
    mad_send_LATER,
    /* The bytes do not change until mad_end_packing() returns. */
    mad_send_CHEAPER
} mad_send_mode_t;

/* What a receiver wants of a piece. */
typedef enum {
    /* The bytes are there when mad_unpack() returns, and may say what follows. */
    mad_receive_EXPRESS,
    /* They are there when mad_end_unpacking() returns. */
    mad_receive_CHEAPER
} mad_receive_mode_t;

/* Joins the session: every process calls it, once, and waits for the others. The arguments are main()'s, which stay as they are; both may
 * be NULL. */
p_mad_madeleine_t mad_init(int *argc, char **argv);
/* Leaves it, once every process does. Channels are nothing any more, nor messages that nobody unpacked. */
void mad_exit(p_mad_madeleine_t madeleine);
/* The rank of this process, and the number of processes. */
int mad_get_rank(p_mad_madeleine_t madeleine);
int mad_get_size(p_mad_madeleine_t madeleine);

/* The channel of that name, the same one each time. Messages of different channels do not meet. Names that have one hash are refused. */
p_mad_channel_t mad_get_channel(p_mad_madeleine_t madeleine, const char *name);

/* Begins a message to a rank. Nothing is sent before mad_end_packing(). */
p_mad_connection_t mad_begin_packing(p_mad_channel_t channel, int to);
void mad_pack(p_mad_connection_t message, const void *bytes, size_t length, mad_send_mode_t send, mad_receive_mode_t receive);
/* Sends it. Waits for the receiver where a piece is longer than 4 KiB and not SAFER. */
void mad_end_packing(p_mad_connection_t message);

/* Whether a message waits in the channel. Does not wait. */
int mad_message_ready(p_mad_channel_t channel);
/* Waits for a message of any rank. */
p_mad_connection_t mad_begin_unpacking(p_mad_channel_t channel);
/* Who sent it. */
int mad_get_sender(p_mad_connection_t message);
void mad_unpack(p_mad_connection_t message, void *bytes, size_t length, mad_send_mode_t send, mad_receive_mode_t receive);
/* Waits until every piece is there. */
void mad_end_unpacking(p_mad_connection_t message);

/* Called with what failed, in the thread where it did. It may leave by longjmp(3); the message it was about is not to be used any more. */
void mad_set_error_handler(void (*handler)(const char *text));

#ifdef __cplusplus
}
#endif

#endif
