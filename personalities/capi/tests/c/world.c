/* The group of what a launcher started: each rank tells each other one its rank. `launchers`: launchers that do not do what they should. */
#include "check.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell_all(mdg_circuit circuit, int rank, int size)
{
    int other, seen = 0;

    for (other = 0; other < size; other++) {
        mdg_packing message;
        CHECK(mdg_begin_packing(circuit, other, 0, &message) == 0);
        CHECK(mdg_pack(message, &rank, sizeof rank, MDG_SAFER) == 0);
        CHECK(mdg_end_packing(message) == 0);
    }
    for (other = 0; other < size; other++) {
        int from, said;
        mdg_unpacking message;
        CHECK(mdg_begin_unpacking(circuit, MDG_ANY, 0, 0, 60 * SECOND, &message) == 0);
        CHECK(mdg_sender(message, &from, NULL) == 0);
        CHECK(mdg_unpack(message, &said, sizeof said, MDG_EXPRESS) == 0);
        CHECK(mdg_end_unpacking(message) == 0);
        CHECK(said == from);
        seen += said;
    }
    CHECK(seen == size * (size - 1) / 2);
}

/* A child asks a launcher that gives these answers, one to a request, then nothing, or its end; the code. */
static int asked(const char *const *answers, int ends)
{
    int pair[2], status;
    pid_t child;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    child = fork();
    if (child == 0) {
        char fd[16];
        mdg_runtime runtime;
        mdg_circuit circuit;
        close(pair[0]);
        snprintf(fd, sizeof fd, "%d", pair[1]);
        setenv("PMI_FD", fd, 1);
        setenv("PMI_RANK", "0", 1);
        setenv("PMI_SIZE", "1", 1);
        CHECK(mdg_runtime_open(&runtime) == 0 && mdg_circuit_open(runtime, 0, &circuit) == 0);
        _exit(-mdg_circuit_world(circuit, SECOND / 5, NULL));
    }
    close(pair[1]);
    for (; *answers; answers++) {
        char request[4096];
        CHECK(read(pair[0], request, sizeof request) > 0);
        CHECK(write(pair[0], *answers, strlen(*answers)) == (ssize_t)strlen(*answers));
    }
    if (ends)
        close(pair[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (!ends)
        close(pair[0]);
    return -WEXITSTATUS(status);
}

static void launchers(void)
{
    const char *nothing[] = {NULL};
    const char *nonsense[] = {"what?\n", NULL};
    const char *refuses[] = {"cmd=response_to_init rc=-1\n", NULL};
    const char *bad_address[] = {"cmd=response_to_init rc=0\n", "cmd=my_kvsname kvsname=k\n", "cmd=put_result rc=0\n",
                                 "cmd=barrier_out\n", "cmd=get_result rc=0 value=xyz\n", NULL};

    CHECK(asked(nothing, 0) == MDG_ETIMEDOUT);
    CHECK(asked(nothing, 1) == MDG_ELOST || asked(nothing, 1) == MDG_ESYSTEM);
    CHECK(asked(nonsense, 0) == MDG_EUNUSABLE);
    CHECK(asked(refuses, 0) == MDG_EUNUSABLE);
    CHECK(asked(bad_address, 0) == MDG_EUNUSABLE);
}

int main(int argc, char **argv)
{
    int rank, size;
    mdg_runtime runtime;
    mdg_circuit circuit, second;

    if (argc > 1 && strcmp(argv[1], "launchers") == 0) {
        launchers();
        printf("good\n");
        return 0;
    }
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_circuit_open(runtime, 0, &circuit) == 0);
    CHECK(mdg_circuit_world(circuit, -2, &size) == MDG_EINVAL);
    rank = mdg_circuit_world(circuit, 60 * SECOND, &size);
    CHECK(rank >= 0 && rank < size);
    tell_all(circuit, rank, size);
    CHECK(mdg_circuit_open(runtime, 0, &second) == 0);
    CHECK(getenv("PMI_FD") == NULL || mdg_circuit_world(second, SECOND, NULL) == MDG_EBUSY);
    CHECK(mdg_flush(circuit, 60 * SECOND) == 0);
    printf("%d of %d: good\n", rank, size);
    CHECK(mdg_close(runtime) == 0);
    return 0;
}
