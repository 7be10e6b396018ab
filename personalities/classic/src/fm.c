#include "fm.h"
#include "session.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages up to this length are received without an allocation. */
#define SHORT 4096

/* In front of a message: its pieces, and the length of the first one. Of further ones the lengths follow as a piece of their own. */
struct front {
    uint32_t count;
    uint32_t first;
};

struct piece {
    const void *bytes;
    uint32_t length;
};

struct FM_stream {
    /* Of one that is sent. */
    unsigned recipient, handler;
    size_t bound;
    uint32_t count, room;
    struct piece *pieces;
    /* Of one that is received: what is left. */
    const char *rest;
    /* In both: bytes sent, or left. */
    size_t length;
};

static struct session session;
/* A stream that nobody uses, so that most messages are sent without an allocation. */
static FM_stream *spare;
static FM_handler handlers[FM_MAX_HANDLERS];
static _Thread_local char error[1024];

static int fail(const char *what)
{
    snprintf(error, sizeof error, "%s: %s", what, mdg_error_text());
    return FM_ERROR;
}

static int refuse(const char *why)
{
    snprintf(error, sizeof error, "%s", why);
    return FM_ERROR;
}

const char *FM_error_text(void)
{
    return error;
}

int FM_initialize(void)
{
    const char *failed = session_open(&session);

    return failed ? fail(failed) : 0;
}

int FM_finalize(void)
{
    const char *failed = session_close(&session);

    return failed ? fail(failed) : 0;
}

unsigned FM_nodeid(void)
{
    return (unsigned)session.rank;
}

unsigned FM_numnodes(void)
{
    return (unsigned)session.size;
}

unsigned FM_register_handler(unsigned number, FM_handler handler)
{
    FM_handler none = NULL;
    unsigned at = number == FM_HANDLER_ANY ? 0 : number;

    for (; at < FM_MAX_HANDLERS; at++) {
        none = NULL;
        if (__atomic_compare_exchange_n(&handlers[at], &none, handler, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return at;
        if (number != FM_HANDLER_ANY)
            break;
    }
    return FM_HANDLER_ANY;
}

FM_stream *FM_begin_message(unsigned recipient, size_t length, unsigned handler)
{
    FM_stream *stream;

    if (recipient >= FM_numnodes() || handler >= FM_MAX_HANDLERS || length > UINT32_MAX) {
        refuse("FM_begin_message: there is no such node or handler, or 4 GiB and more are no message");
        return NULL;
    }
    stream = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQ_REL);
    if (!stream && !(stream = calloc(1, sizeof *stream))) {
        refuse("FM_begin_message: no memory");
        return NULL;
    }
    stream->recipient = recipient;
    stream->handler = handler;
    stream->bound = length;
    stream->count = 0;
    stream->length = 0;
    return stream;
}

static void put_by(FM_stream *stream)
{
    stream = __atomic_exchange_n(&spare, stream, __ATOMIC_ACQ_REL);
    if (stream) {
        free(stream->pieces);
        free(stream);
    }
}

int FM_send_piece(FM_stream *stream, const void *bytes, size_t length)
{
    if (length > stream->bound - stream->length)
        return refuse("FM_send_piece: more bytes than FM_begin_message() was told");
    if (length == 0)
        return 0;
    if (stream->count == stream->room) {
        uint32_t room = stream->room ? 2 * stream->room : 4;
        struct piece *pieces = realloc(stream->pieces, room * sizeof *pieces);
        if (!pieces)
            return refuse("FM_send_piece: no memory");
        stream->pieces = pieces;
        stream->room = room;
    }
    stream->pieces[stream->count].bytes = bytes;
    stream->pieces[stream->count++].length = (uint32_t)length;
    stream->length += length;
    return 0;
}

/* Packs what goes in front of the pieces; `lengths` has room for those of all but the first. */
static int pack_front(mdg_packing message, const FM_stream *stream, uint32_t *lengths)
{
    struct front front = {stream->count, stream->count ? stream->pieces[0].length : 0};
    uint32_t at;

    if (mdg_pack(message, &front, sizeof front, MDG_SAFER) < 0)
        return FM_ERROR;
    for (at = 1; at < stream->count; at++)
        lengths[at - 1] = stream->pieces[at].length;
    return stream->count < 2 ? 0 : mdg_pack(message, lengths, (stream->count - 1) * sizeof *lengths, MDG_CHEAPER);
}

static int send_all(const FM_stream *stream, uint32_t *lengths)
{
    mdg_packing message;
    uint32_t at;

    if (mdg_begin_packing(session.circuit, (int)stream->recipient, stream->handler, &message) < 0)
        return fail("FM_end_message");
    if (pack_front(message, stream, lengths) < 0) {
        mdg_close(message);
        return fail("FM_end_message");
    }
    for (at = 0; at < stream->count; at++) {
        if (mdg_pack(message, stream->pieces[at].bytes, stream->pieces[at].length, MDG_CHEAPER) < 0) {
            mdg_close(message);
            return fail("FM_end_message");
        }
    }
    return mdg_end_packing(message) < 0 ? fail("FM_end_message") : 0;
}

int FM_end_message(FM_stream *stream)
{
    uint32_t *lengths = stream->count < 2 ? NULL : malloc((stream->count - 1) * sizeof *lengths);
    int result = stream->count < 2 || lengths ? send_all(stream, lengths) : refuse("FM_end_message: no memory");

    free(lengths);
    put_by(stream);
    return result;
}

/* The lengths of all pieces, which the caller frees unless they are `one`; NULL: an error is in *result. */
static uint32_t *unpack_lengths(mdg_unpacking message, const struct front *front, uint32_t *one, int *result)
{
    uint32_t *lengths = front->count < 2 ? one : malloc(front->count * sizeof *lengths);

    *result = 0;
    if (!lengths) {
        *result = refuse("FM_extract: no memory");
        return NULL;
    }
    lengths[0] = front->first;
    if (front->count > 1 && mdg_unpack(message, lengths + 1, (front->count - 1) * sizeof *lengths, MDG_EXPRESS) < 0)
        *result = fail("FM_extract");
    return lengths;
}

/* Receives the pieces one behind the other, and calls the handler; what it returns. */
static int handle_pieces(mdg_unpacking message, uint32_t count, const uint32_t *lengths, char *bytes, FM_stream *stream)
{
    unsigned number = stream->handler;
    FM_handler handler = __atomic_load_n(&handlers[number], __ATOMIC_ACQUIRE);
    uint32_t at;
    size_t place = 0;

    for (at = 0; at < count; at++) {
        if (mdg_unpack(message, bytes + place, lengths[at], MDG_CHEAPER) < 0) {
            mdg_close(message);
            return fail("FM_extract");
        }
        place += lengths[at];
    }
    if (mdg_end_unpacking(message) < 0)
        return fail("FM_extract");
    if (!handler)
        return refuse("FM_extract: a message to a handler that is not registered");
    stream->rest = bytes;
    stream->length = place;
    return handler(stream, stream->recipient);
}

/* Handles a message; what its handler returns. Adds its length to *length. */
static int handle(mdg_unpacking message, long *length)
{
    char few[SHORT], *bytes = few;
    struct front front;
    FM_stream stream = {0};
    uint64_t tag, all = 0;
    int from, result;
    uint32_t *lengths, one, at;

    if (mdg_sender(message, &from, &tag) < 0 || mdg_unpack(message, &front, sizeof front, MDG_EXPRESS) < 0) {
        mdg_close(message);
        return fail("FM_extract");
    }
    lengths = unpack_lengths(message, &front, &one, &result);
    for (at = 0; lengths && at < front.count; at++)
        all += lengths[at];
    if (result == 0 && (tag >= FM_MAX_HANDLERS || all > UINT32_MAX))
        result = refuse("FM_extract: a message that is none of FastMessages");
    if (result == 0 && all > sizeof few && !(bytes = malloc((size_t)all)))
        result = refuse("FM_extract: no memory");
    if (result == 0) {
        stream.recipient = (unsigned)from;
        stream.handler = (unsigned)tag;
        *length += (long)all;
        result = handle_pieces(message, front.count, lengths, bytes, &stream);
    } else {
        mdg_close(message);
    }
    if (lengths != &one)
        free(lengths);
    if (bytes != few)
        free(bytes);
    return result;
}

long FM_extract(size_t most)
{
    long length = 0;

    do {
        mdg_unpacking message;
        int code = mdg_begin_unpacking(session.circuit, MDG_ANY, 0, FM_MAX_HANDLERS - 1, 0, &message);
        if (code == MDG_ETIMEDOUT)
            return length;
        if (code < 0)
            return fail("FM_extract");
        switch (handle(message, &length)) {
        case FM_CONTINUE:
            break;
        case FM_QUIT:
            return length;
        default:
            return FM_ERROR;
        }
    } while ((size_t)length < most);
    return length;
}

int FM_receive(void *bytes, FM_stream *stream, size_t length)
{
    if (length > stream->length)
        return refuse("FM_receive: more bytes than are left of the message");
    memcpy(bytes, stream->rest, length);
    stream->rest += length;
    stream->length -= length;
    return 0;
}

size_t FM_stream_length(const FM_stream *stream)
{
    return stream->length;
}
