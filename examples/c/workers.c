/* Master and workers, as programs for PVM are written: rank 0 gives each worker a task, and whoever has answered gets the next one; the tag
 * says what a message is. Started by `madrigal run -n 4 ./workers`, or by mpiexec of MPICH. */
#include <madrigal.h>
#include <stdio.h>

/* Tags: a task, by its number; what came of one; there are no more. */
enum { TASK = 1, RESULT, STOP };
/* A task is to count the primes among so many numbers. */
enum { NUMBERS = 1000, TASKS = 100 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

static int send_number(mdg_circuit world, int to, uint64_t tag, uint64_t number)
{
    mdg_packing message;

    if (mdg_begin_packing(world, to, tag, &message) < 0 || mdg_pack(message, &number, sizeof number, MDG_SAFER) < 0)
        return -1;
    return mdg_end_packing(message);
}

/* The next message of `from`, with any tag: whose it is, its tag, its number. */
static int receive_number(mdg_circuit world, int from, int *sender, uint64_t *tag, uint64_t *number)
{
    mdg_unpacking message;

    if (mdg_begin_unpacking(world, from, 0, UINT64_MAX, MDG_FOREVER, &message) < 0 || mdg_sender(message, sender, tag) < 0 ||
        mdg_unpack(message, number, sizeof *number, MDG_CHEAPER) < 0)
        return -1;
    return mdg_end_unpacking(message);
}

static int next_task(mdg_circuit world, int worker, uint64_t *next)
{
    int is_left = *next < TASKS;

    if (send_number(world, worker, is_left ? TASK : STOP, *next) < 0)
        return -1;
    *next += is_left;
    return is_left;
}

static int master(mdg_circuit world, int workers)
{
    int busy = 0, worker, given;
    uint64_t next = 0, primes = 0, tag, counted;

    for (worker = 1; worker <= workers; worker++) {
        given = next_task(world, worker, &next);
        if (given < 0)
            return failed("send");
        busy += given;
    }
    while (busy > 0) {
        if (receive_number(world, MDG_ANY, &worker, &tag, &counted) < 0)
            return failed("receive");
        primes += counted;
        given = next_task(world, worker, &next);
        if (given < 0)
            return failed("send");
        busy -= !given;
    }
    printf("%d primes below %d, counted by %d workers\n", (int)primes, TASKS * NUMBERS, workers);
    return 0;
}

static int is_prime(uint64_t number)
{
    for (uint64_t factor = 2; factor * factor <= number; factor++)
        if (number % factor == 0)
            return 0;
    return number > 1;
}

static int work(mdg_circuit world)
{
    int from;
    uint64_t tag, task;

    for (;;) {
        uint64_t primes = 0;

        if (receive_number(world, 0, &from, &tag, &task) < 0)
            return failed("receive");
        if (tag == STOP)
            return 0;
        for (uint64_t number = NUMBERS * task; number < NUMBERS * (task + 1); number++)
            primes += (uint64_t)is_prime(number);
        if (send_number(world, 0, RESULT, primes) < 0)
            return failed("send");
    }
}

int main(void)
{
    int rank, size, result;
    mdg_runtime runtime;
    mdg_circuit world;

    if (mdg_runtime_open(&runtime) < 0 || mdg_circuit_open(runtime, MDG_TAGS, &world) < 0)
        return failed("open");
    rank = mdg_circuit_world(world, MDG_FOREVER, &size);
    if (rank < 0)
        return failed("join");
    result = rank == 0 ? master(world, size - 1) : work(world);
    return mdg_close(runtime) < 0 ? failed("close") : result;
}
