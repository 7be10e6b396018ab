/*
 * FastMessages 2.x on Madrigal: messages to handlers, sent and received in pieces of any lengths.
 *
 * A program is all processes that one launcher started (mpiexec of MPICH, `madrigal run`). Messages of one node to another one arrive in
 * the order in which they ended, each once. A handler runs in the thread that extracts, once the whole message is there; it may send, and
 * extract. Functions that return int return 0, or FM_ERROR with a text in FM_error_text().
 *
 * Link: pkg-config --cflags --libs madrigal-classic. docs/personalities.md.
 */
#ifndef FM_H
#define FM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A message that is sent or received. */
typedef struct FM_stream FM_stream;

/* What a handler returns: FM_extract() goes on, or returns. */
#define FM_CONTINUE 0
#define FM_QUIT 1
#define FM_ERROR -1

/* For FM_register_handler(): any number that is free. Nodes that register in the same order get the same numbers. */
#define FM_HANDLER_ANY ((unsigned)-1)
/* Handlers are numbered from 0 to this, less one. */
#define FM_MAX_HANDLERS 1024

typedef int (*FM_handler)(FM_stream *stream, unsigned sender);

/* Joins the program: every process calls it, once, and waits for the others. */
int FM_initialize(void);
/* Leaves it, once every process does. Messages that nobody extracted are gone. */
int FM_finalize(void);
/* This node, and how many there are. */
unsigned FM_nodeid(void);
unsigned FM_numnodes(void);
/* What went wrong in this thread's last call that failed. */
const char *FM_error_text(void);

/* A handler gets a number; which, or FM_HANDLER_ANY if none is free, or that one is not. */
unsigned FM_register_handler(unsigned number, FM_handler handler);

/* Begins a message of `length` bytes at most to a handler of a node; NULL if there is no such node or no memory. */
FM_stream *FM_begin_message(unsigned recipient, size_t length, unsigned handler);
/* Adds bytes, which do not change until FM_end_message(). */
int FM_send_piece(FM_stream *stream, const void *bytes, size_t length);
/* Sends it. The stream is nothing any more, whatever is returned. Waits for the receiver where a piece is longer than 4 KiB. */
int FM_end_message(FM_stream *stream);

/* Runs the handlers of messages that have come, until they had `most` bytes (a message begun is handled to its end), or one returns FM_QUIT,
 * or there are none. Does not wait. How many bytes they had, or FM_ERROR. */
long FM_extract(size_t most);
/* In a handler: the next bytes of its message. What is left when it returns is thrown away. FM_ERROR: there are not so many. */
int FM_receive(void *bytes, FM_stream *stream, size_t length);
/* In a handler: how many bytes are left. */
size_t FM_stream_length(const FM_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
