/* Madeleine: a number goes around all ranks, and each adds its own. madrigal run -n 4 ring */
#include <madeleine.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    p_mad_madeleine_t all = mad_init(&argc, argv);
    p_mad_channel_t ring = mad_get_channel(all, "ring");
    int rank = mad_get_rank(all), size = mad_get_size(all), sum = 0;
    p_mad_connection_t message;

    if (rank > 0) {
        message = mad_begin_unpacking(ring);
        mad_unpack(message, &sum, sizeof sum, mad_send_SAFER, mad_receive_EXPRESS);
        mad_end_unpacking(message);
    }
    sum += rank;
    message = mad_begin_packing(ring, (rank + 1) % size);
    mad_pack(message, &sum, sizeof sum, mad_send_SAFER, mad_receive_EXPRESS);
    mad_end_packing(message);
    if (rank == 0) {
        message = mad_begin_unpacking(ring);
        mad_unpack(message, &sum, sizeof sum, mad_send_SAFER, mad_receive_EXPRESS);
        mad_end_unpacking(message);
        printf("%d ranks, and their sum is %d\n", size, sum);
    }
    mad_exit(all);
    return 0;
}
