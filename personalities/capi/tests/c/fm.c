/* FastMessages' semantics: pieces of any lengths, handlers that send, bounds, order, what is thrown away. */
#include "check.h"

#include <fm.h>

#define LONG 700000
#define ROUNDS 200

static unsigned ordered, whole, partial, echo, quits;
static unsigned next_of[64], wholes, partials, echoes, quit;
static unsigned char sent[LONG], got[LONG];

static int on_ordered(FM_stream *stream, unsigned sender)
{
    unsigned number;

    CHECK(FM_stream_length(stream) == sizeof number && FM_receive(&number, stream, sizeof number) == 0);
    CHECK(number == next_of[sender]);
    next_of[sender]++;
    return FM_CONTINUE;
}

/* Received in other pieces than it was sent in. */
static int on_whole(FM_stream *stream, unsigned sender)
{
    size_t at = 0, length = FM_stream_length(stream);

    (void)sender;
    CHECK(length <= LONG);
    while (at < length) {
        size_t piece = length - at < 1009 ? length - at : 1009;
        CHECK(FM_receive(got + at, stream, piece) == 0);
        at += piece;
    }
    CHECK(is_filled(got, length, 5));
    CHECK(FM_receive(got, stream, 1) == FM_ERROR && strstr(FM_error_text(), "are left"));
    wholes++;
    return FM_CONTINUE;
}

/* The rest is thrown away. */
static int on_partial(FM_stream *stream, unsigned sender)
{
    unsigned char first;

    (void)sender;
    CHECK(FM_receive(&first, stream, 1) == 0 && first == pattern(5, 0));
    partials++;
    return FM_CONTINUE;
}

static int send_bytes(unsigned to, unsigned handler, size_t length, size_t piece)
{
    FM_stream *stream = FM_begin_message(to, length + 10, handler);
    size_t at;

    CHECK(stream != NULL);
    for (at = 0; at < length; at += piece)
        CHECK(FM_send_piece(stream, sent + at, length - at < piece ? length - at : piece) == 0);
    CHECK(FM_send_piece(stream, sent, 11) == FM_ERROR);
    return FM_end_message(stream);
}

/* Sent back from the handler. */
static int on_echo(FM_stream *stream, unsigned sender)
{
    unsigned hops;

    CHECK(FM_receive(&hops, stream, sizeof hops) == 0);
    echoes++;
    if (hops > 0) {
        FM_stream *back = FM_begin_message(sender, sizeof hops, echo);
        hops--;
        CHECK(back && FM_send_piece(back, &hops, sizeof hops) == 0 && FM_end_message(back) == 0);
    }
    return FM_CONTINUE;
}

static int on_quit(FM_stream *stream, unsigned sender)
{
    (void)stream;
    (void)sender;
    quit++;
    return FM_QUIT;
}

static void send_number(unsigned to, unsigned handler, unsigned number)
{
    FM_stream *stream = FM_begin_message(to, sizeof number, handler);

    CHECK(stream && FM_send_piece(stream, &number, sizeof number) == 0 && FM_end_message(stream) == 0);
}

static void until(const unsigned *count, unsigned wanted)
{
    while (*count < wanted)
        CHECK(FM_extract(1) >= 0);
}

int main(void)
{
    static const size_t lengths[] = {0, 1, 4096, 4097, LONG};
    static const size_t pieces[] = {1 << 30, 4096, 333};
    unsigned nodes, me, at, node;
    size_t length, piece;

    CHECK(FM_initialize() == 0);
    nodes = FM_numnodes();
    me = FM_nodeid();
    ordered = FM_register_handler(FM_HANDLER_ANY, on_ordered);
    whole = FM_register_handler(FM_HANDLER_ANY, on_whole);
    partial = FM_register_handler(FM_HANDLER_ANY, on_partial);
    echo = FM_register_handler(FM_HANDLER_ANY, on_echo);
    quits = FM_register_handler(FM_HANDLER_ANY, on_quit);
    CHECK(FM_register_handler(ordered, on_echo) == FM_HANDLER_ANY);
    CHECK(FM_register_handler(1000, on_echo) == 1000);
    CHECK(FM_begin_message(nodes, 1, ordered) == NULL && FM_begin_message(0, 1, FM_MAX_HANDLERS) == NULL);
    fill(sent, LONG, 5);
    /* Every node to node 0, which extracts. */
    if (me > 0) {
        for (at = 0; at < ROUNDS; at++)
            send_number(0, ordered, at);
        for (length = 0; length < 5; length++)
            for (piece = 0; piece < 3; piece++)
                CHECK(send_bytes(0, whole, lengths[length], pieces[piece]) == 0);
        CHECK(send_bytes(0, partial, 5000, 100) == 0);
        send_number(0, echo, 99);
        until(&echoes, 50);
    } else {
        until(&wholes, 15 * (nodes - 1));
        until(&partials, nodes - 1);
        until(&echoes, 50 * (nodes - 1));
        for (node = 1; node < nodes; node++)
            CHECK(next_of[node] == ROUNDS);
        /* To itself: a handler that quits ends the extraction. */
        send_number(0, quits, 1);
        send_number(0, quits, 2);
        for (at = 1; at <= 2; at++) {
            while (quit < at)
                CHECK(FM_extract(1 << 20) >= 0);
            CHECK(quit == at);
        }
        /* No more than was asked for, and the message that was begun. */
        for (at = 0; at < 10; at++)
            send_number(0, echo, 0);
        for (at = 0; at < 40;) {
            long had = FM_extract(9);
            CHECK(had >= 0 && had <= 12);
            at += (unsigned)had;
        }
        CHECK(at == 40 && FM_extract(1) == 0);
        printf("good\n");
    }
    CHECK(FM_finalize() == 0);
    return 0;
}
