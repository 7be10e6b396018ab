/* Madeleine's semantics: the six pairs of modes, channels that do not meet, order, messages that are ready. */
#include "check.h"

#include <madeleine.h>

#define LONG 300000

static const mad_send_mode_t sends[] = {mad_send_SAFER, mad_send_LATER, mad_send_CHEAPER};
static const mad_receive_mode_t receives[] = {mad_receive_EXPRESS, mad_receive_CHEAPER};
static const size_t lengths[] = {0, 1, 4096, 4097, LONG};

static void send_modes(p_mad_channel_t channel, int to, unsigned seed)
{
    static unsigned char pieces[6][LONG];
    size_t length;
    int send, receive, at;

    for (length = 0; length < sizeof lengths / sizeof *lengths; length++) {
        p_mad_connection_t message = mad_begin_packing(channel, to);
        for (send = at = 0; send < 3; send++) {
            for (receive = 0; receive < 2; receive++, at++) {
                fill(pieces[at], lengths[length], seed + (unsigned)at);
                mad_pack(message, pieces[at], lengths[length], sends[send], receives[receive]);
                /* What is SAFER may change at once, what is LATER until the end. */
                if (sends[send] == mad_send_SAFER)
                    memset(pieces[at], 0, lengths[length]);
                if (sends[send] == mad_send_LATER)
                    fill(pieces[at], lengths[length], seed + 100 + (unsigned)at);
            }
        }
        mad_end_packing(message);
    }
}

static void receive_modes(p_mad_channel_t channel, unsigned seed)
{
    static unsigned char pieces[6][LONG];
    size_t length;
    int send, receive, at;

    for (length = 0; length < sizeof lengths / sizeof *lengths; length++) {
        p_mad_connection_t message = mad_begin_unpacking(channel);
        for (send = at = 0; send < 3; send++) {
            for (receive = 0; receive < 2; receive++, at++) {
                unsigned expected = seed + (unsigned)at + (sends[send] == mad_send_LATER ? 100 : 0);
                mad_unpack(message, pieces[at], lengths[length], sends[send], receives[receive]);
                if (receives[receive] == mad_receive_EXPRESS)
                    CHECK(is_filled(pieces[at], lengths[length], expected));
            }
        }
        mad_end_unpacking(message);
        for (at = 0; at < 6; at++)
            CHECK(is_filled(pieces[at], lengths[length], seed + (unsigned)at + (at / 2 == 1 ? 100 : 0)));
    }
}

static void send_number(p_mad_channel_t channel, int to, int number)
{
    p_mad_connection_t message = mad_begin_packing(channel, to);

    mad_pack(message, &number, sizeof number, mad_send_SAFER, mad_receive_EXPRESS);
    mad_end_packing(message);
}

static int receive_number(p_mad_channel_t channel, int *from)
{
    p_mad_connection_t message = mad_begin_unpacking(channel);
    int number;

    *from = mad_get_sender(message);
    mad_unpack(message, &number, sizeof number, mad_send_SAFER, mad_receive_EXPRESS);
    mad_end_unpacking(message);
    return number;
}

int main(int argc, char **argv)
{
    p_mad_madeleine_t all = mad_init(&argc, argv);
    p_mad_channel_t one = mad_get_channel(all, "one"), two = mad_get_channel(all, "two");
    int rank = mad_get_rank(all), size = mad_get_size(all), at, from;

    CHECK(size > 1 && mad_get_channel(all, "one") == one && one != two);
    CHECK(rank != 0 || !mad_message_ready(two));
    if (rank == 1)
        send_modes(mad_get_channel(all, "modes"), 0, 7);
    if (rank == 0)
        receive_modes(mad_get_channel(all, "modes"), 7);
    /* Of one channel in the order they were sent, whatever comes by another one. */
    if (rank > 0) {
        for (at = 0; at < 100; at++) {
            send_number(one, 0, at);
            send_number(two, 0, 1000 + at);
        }
    } else {
        int seen[64] = {0};
        for (at = 0; at < 100 * (size - 1); at++) {
            int number = receive_number(two, &from);
            CHECK(from > 0 && number == 1000 + seen[from]);
            seen[from]++;
        }
        while (!mad_message_ready(one))
            ;
        CHECK(mad_message_ready(one));
        memset(seen, 0, sizeof seen);
        for (at = 0; at < 100 * (size - 1); at++) {
            int number = receive_number(one, &from);
            CHECK(number == seen[from]);
            seen[from]++;
        }
        CHECK(!mad_message_ready(one) && !mad_message_ready(two));
    }
    if (rank == 0)
        printf("good\n");
    mad_exit(all);
    return 0;
}
