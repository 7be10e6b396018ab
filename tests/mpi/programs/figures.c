/* Figures: latency, bandwidth, message rate; what idling costs; what happens when a rank dies. */
#include "bed.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static double ping(int peer, unsigned char *data, int length, long rounds) {
    double begin = now();
    for (long i = 0; i < rounds; i++) {
        if (rank < peer) {
            MPI_Send(data, length, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(data, length, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(data, length, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(data, length, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        }
    }
    return (now() - begin) / (double)rounds / 2;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The median of blocks of about 2 ms, in seconds for one way. */
static double latency(int peer, unsigned char *data, int length, double seconds) {
    enum { MOST = 4096 };
    static double blocks[MOST];
    ping(peer, data, length, 20);
    double one = ping(peer, data, length, 20);
    long each = (long)(1e-3 / (one > 1e-8 ? one : 1e-8)) + 1, count = (long)(seconds / (2 * one * (double)each)) + 3;
    long plan[2] = {each, count > MOST ? MOST : count};
    if (rank < peer)
        MPI_Send(plan, 2, MPI_LONG, peer, 2, MPI_COMM_WORLD);
    else
        MPI_Recv(plan, 2, MPI_LONG, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (long i = 0; i < plan[1]; i++)
        blocks[i] = ping(peer, data, length, plan[0]);
    qsort(blocks, (size_t)plan[1], sizeof *blocks, compare);
    return blocks[plan[1] / 2];
}

/* pingpong MILLISECONDS LENGTH...: half round trips between ranks 0 and 1, for each size. */
void test_pingpong(int count, char **arguments) {
    double seconds = 1e-3 * (double)argument(arguments, 1, 100);
    unsigned char *data = must_alloc(8 << 20);
    memset(data, 1, 8 << 20);
    if (rank == 0)
        printf("# size latency_us MB/s\n");
    for (int length = 0; rank < 2 && ranks > 1 && count <= 2 && length <= 4 << 20; length = length ? 2 * length : 1) {
        double one = latency(1 - rank, data, length, seconds);
        if (rank == 0)
            printf("figure pingpong bytes %d median_us %.3f MB/s %.1f\n", length, 1e6 * one, 1e-6 * length / one);
    }
    for (int i = 2; rank < 2 && ranks > 1 && i < count; i++) {
        int length = atoi(arguments[i]);
        double one = latency(1 - rank, data, length, seconds);
        if (rank == 0)
            printf("figure pingpong bytes %d median_us %.3f MB/s %.1f\n", length, 1e6 * one, 1e-6 * length / one);
    }
    free(data);
}

/* Windows of messages one way, an answer after each window; seconds for one window. */
static double window_time(int length, int window, long rounds, unsigned char *data) {
    MPI_Request requests[64];
    char answer = 0;
    double begin = now();
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < window; i++)
            if (rank == 0)
                MPI_Isend(data, length, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(data + (size_t)length * (size_t)(i % 4), length, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(&answer, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&answer, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
    return (now() - begin) / (double)rounds;
}

static double windows(int length, double seconds) {
    unsigned char *data = must_alloc((size_t)length * 4 + 1);
    memset(data, 2, (size_t)length * 4 + 1);
    window_time(length, 64, 2, data);
    double times[5];
    for (int i = 0; i < 5; i++) {
        long rounds = (long)(seconds / 5 / window_time(length, 64, 1, data)) + 1;
        MPI_Request request;
        if (rank == 0)
            MPI_Isend(&rounds, 1, MPI_LONG, 1, 3, MPI_COMM_WORLD, &request), MPI_Wait(&request, MPI_STATUS_IGNORE);
        else
            MPI_Recv(&rounds, 1, MPI_LONG, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        times[i] = window_time(length, 64, rounds, data);
    }
    qsort(times, 5, sizeof *times, compare);
    free(data);
    return times[2];
}

/* bandwidth MILLISECONDS LENGTH...: 64 messages at a time from rank 0 to rank 1. */
void test_bandwidth(int count, char **arguments) {
    double seconds = 1e-3 * (double)argument(arguments, 1, 500);
    static char *usual[] = {"", "", "65536", "1048576", NULL};
    if (count <= 2)
        arguments = usual, count = 4;
    for (int i = 2; rank < 2 && ranks > 1 && i < count; i++) {
        int length = atoi(arguments[i]);
        double one = windows(length, seconds);
        if (rank == 0)
            printf("figure bandwidth bytes %d MB/s %.1f\n", length, 64e-6 * length / one);
    }
}

/* rate MILLISECONDS: messages of 8 bytes a second, 64 at a time. */
void test_rate(int count, char **arguments) {
    double seconds = 1e-3 * (double)argument(arguments, 1, 500);
    if (rank < 2 && ranks > 1) {
        double one = windows(8, seconds);
        if (rank == 0)
            printf("figure rate bytes 8 messages/s %.0f\n", 64 / one);
    }
    (void)count;
}

static double processor_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* late SECONDS: the last rank stays away from MPI for a while before rank 0's first message comes: nobody may take it for lost. */
void test_late(int count, char **arguments) {
    unsigned away = (unsigned)argument(arguments, 1, 18);
    int value = 7;
    if (rank == ranks - 1) {
        sleep(away);
        MPI_Recv(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value == 42, "%d received", value);
        MPI_Send(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    } else if (rank == 0) {
        value = 42;
        MPI_Send(&value, 1, MPI_INT, ranks - 1, 1, MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    (void)count;
}

static volatile sig_atomic_t ticked;
static double used_at_tick, time_at_tick;
static void tick(int signal) {
    used_at_tick = processor_seconds();
    time_at_tick = now();
    ticked = signal;
}

/* idle SECONDS: rank 1 waits in a blocking receive while rank 0 sleeps; what of a processor it uses, not counting the first second. */
void test_idle(int count, char **arguments) {
    long seconds = argument(arguments, 1, 3);
    char byte = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        double until = now() + (double)seconds;
        while (now() < until)
            usleep(200000);
        for (int peer = 1; peer < ranks; peer++)
            MPI_Send(&byte, 1, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        double used = 0;
        MPI_Recv(&used, 1, MPI_DOUBLE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("figure idle percent %.2f\n", 100 * used);
        return;
    }
    signal(SIGALRM, tick);
    alarm(1);
    MPI_Recv(&byte, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(ticked, "the receive came back within a second");
    double used = (processor_seconds() - used_at_tick) / (now() - time_at_tick);
    if (rank == 1)
        MPI_Send(&used, 1, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD);
    (void)count;
}

/* kill LENGTH: rank 1 kills itself; the others, in the middle of talking to it, must learn of it. Prints how long each of them waited;
   ends without MPI_Finalize, which nobody promises any more. */
void test_kill(int count, char **arguments) {
    int length = (int)argument(arguments, 1, 8);
    char *data = must_alloc((size_t)length + 8);
    memset(data, 0, (size_t)length + 8);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 10; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        for (int peer = 0; peer < ranks; peer++)
            if (peer != 1)
                MPI_Send(data, length, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        printf("figure killed at %.3f\n", now());
        fflush(stdout);
        raise(SIGKILL);
    }
    int code = MPI_Recv(data, length, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double begin = now();
    if (code == MPI_SUCCESS)
        code = MPI_Recv(data, length, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("figure kill rank %d code %d seconds %.3f\n", rank, code, now() - begin);
    fflush(stdout);
    /* Who leaves takes the others along. */
    while (now() < begin + 2.5)
        usleep(100000);
    _exit(code == MPI_SUCCESS ? 4 : 0);
    (void)count;
}

/* why MADRIGAL: rank 0 runs `MADRIGAL why` about itself, in the middle of the job, after it sent a message to everybody. */
void test_why(int count, char **arguments) {
    CHECK(count > 1, "no command to run");
    size_t length = 6 << 20;
    char *data = must_alloc(length), command[4096];
    fill(data, length, 7);
    for (int peer = 1; peer < ranks && rank == 0; peer++)
        MPI_Send(data, (int)length, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
    if (rank != 0) {
        memset(data, 0, length);
        MPI_Recv(data, (int)length, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect(data, length, 7, "what was sent");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        snprintf(command, sizeof command, "%s why %d", arguments[1], (int)getpid());
        fflush(stdout);
        CHECK(system(command) == 0, "%s", command);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(data);
}
