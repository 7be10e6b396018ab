/* A parameter server: rank 0 adds what the workers send to its parameters, and sends them back. Started by `madrigal run -n 4 ./parameters`,
 * or by mpiexec of MPICH. */
#include <madrigal.h>
#include <stdio.h>

enum { LENGTH = 10000, ROUNDS = 5 };
static double parameters[LENGTH], gradient[LENGTH];

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

static int send_array(mdg_circuit world, int to, const double *array)
{
    mdg_packing message;

    if (mdg_begin_packing(world, to, 0, &message) < 0 || mdg_pack(message, array, LENGTH * sizeof *array, MDG_CHEAPER) < 0)
        return -1;
    return mdg_end_packing(message);
}

static int receive_array(mdg_circuit world, int from, double *array)
{
    mdg_unpacking message;

    if (mdg_begin_unpacking(world, from, 0, 0, MDG_FOREVER, &message) < 0 ||
        mdg_unpack(message, array, LENGTH * sizeof *array, MDG_CHEAPER) < 0)
        return -1;
    return mdg_end_unpacking(message);
}

static int serve(mdg_circuit world, int size)
{
    double sum = 0;

    for (int round = 0; round < ROUNDS; round++) {
        for (int worker = 1; worker < size; worker++) {
            if (receive_array(world, MDG_ANY, gradient) < 0)
                return failed("receive");
            for (int i = 0; i < LENGTH; i++)
                parameters[i] += gradient[i];
        }
        for (int worker = 1; worker < size; worker++)
            if (send_array(world, worker, parameters) < 0)
                return failed("send");
    }
    for (int i = 0; i < LENGTH; i++)
        sum += parameters[i];
    printf("the parameters' sum is %.1f\n", sum);
    return 0;
}

static int work(mdg_circuit world, int rank)
{
    for (int i = 0; i < LENGTH; i++)
        gradient[i] = rank;
    for (int round = 0; round < ROUNDS; round++)
        if (send_array(world, 0, gradient) < 0 || receive_array(world, 0, parameters) < 0)
            return failed("work");
    return 0;
}

int main(void)
{
    int rank, size, result;
    mdg_runtime runtime;
    mdg_circuit world;

    if (mdg_runtime_open(&runtime) < 0 || mdg_circuit_open(runtime, 0, &world) < 0)
        return failed("open");
    rank = mdg_circuit_world(world, MDG_FOREVER, &size);
    if (rank < 0)
        return failed("join");
    result = rank == 0 ? serve(world, size) : work(world, rank);
    return mdg_close(runtime) < 0 ? failed("close") : result;
}
