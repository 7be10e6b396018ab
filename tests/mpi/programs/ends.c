/* What must end, or be said, when the other side does not do its part. */
#include "bed.h"

#include <signal.h>
#include <unistd.h>

/* early: the last rank kills itself before anybody has talked to it; rank 0, who waits for a message of its, must learn of it. */
void test_early(int count, char **arguments) {
    int value = 0, dead = ranks - 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank == dead)
        raise(SIGKILL);
    double begin = now();
    if (rank == 0) {
        int code = MPI_Recv(&value, 1, MPI_INT, dead, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("figure early code %d seconds %.3f\n", code, now() - begin);
        fflush(stdout);
        _exit(code == MPI_SUCCESS ? 4 : 0);
    }
    /* Who leaves takes the others along; what one of them still needs of MPI_Init is sent on only while the MPI is called. */
    for (int found; now() < begin + 40; usleep(1000))
        MPI_Iprobe(MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    _exit(0);
    (void)count;
    (void)arguments;
}

/* cut: rank 0 and the last one talk, until the network between their hosts is cut; whoever learns of it says so. */
void test_cut(int count, char **arguments) {
    int value = 0, peer = rank == 0 ? ranks - 1 : 0, code = MPI_SUCCESS;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        /* Launchers have nothing on its way by then. */
        sleep(2);
        printf("figure cut me\n");
        fflush(stdout);
    }
    while ((rank == 0 || rank == ranks - 1) && code == MPI_SUCCESS)
        code = MPI_Sendrecv_replace(&value, 1, MPI_INT, peer, 1, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS)
        code = MPI_Recv(&value, 1, MPI_INT, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("figure cut rank %d code %d\n", rank, code);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 5);
    (void)count;
    (void)arguments;
}

/* flood MESSAGES SECONDS: rank 0 begins so many sends before the last rank receives any, which it does after so many seconds. */
void test_flood(int count, char **arguments) {
    long messages = argument(arguments, 1, 1000000);
    double wait = (double)argument(arguments, 2, 15), begin = now();
    MPI_Request *requests = must_alloc((size_t)messages * sizeof *requests);
    int peer = rank == 0 ? ranks - 1 : 0;
    for (long i = 0; i < messages && rank == 0; i++)
        MPI_Isend(&i, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[i]);
    if (rank == ranks - 1) {
        /* It waits for something else meanwhile. */
        int done = 0;
        MPI_Request other;
        MPI_Irecv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, &other);
        while (now() < begin + wait)
            MPI_Test(&other, &done, MPI_STATUS_IGNORE);
        MPI_Cancel(&other);
        MPI_Wait(&other, MPI_STATUS_IGNORE);
    }
    for (long i = 0; i < messages && rank == ranks - 1; i++)
        MPI_Irecv(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[i]);
    if (rank == 0 || rank == ranks - 1)
        MPI_Waitall((int)messages, requests, MPI_STATUSES_IGNORE);
    free(requests);
    (void)count;
}

/* exports NAME VALUE: every rank has that variable. */
void test_exports(int count, char **arguments) {
    CHECK(count > 2, "bed exports NAME VALUE");
    const char *value = getenv(arguments[1]);
    CHECK(value && strcmp(value, arguments[2]) == 0, "%s is %s", arguments[1], value ? value : "not set");
}
