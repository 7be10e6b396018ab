/* Two processes in a group: a message of two pieces, the first of which says how long the second is. */
#include <madrigal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

/* Ranks tell each other their addresses by a socket; an MPI program would use MPI_Allgather. */
static int join(mdg_circuit circuit, int rank, int socket)
{
    char all[2][MDG_ADDRESS];

    if (mdg_circuit_address(circuit, all[rank]) < 0)
        return -1;
    if (write(socket, all[rank], MDG_ADDRESS) != MDG_ADDRESS || read(socket, all[1 - rank], MDG_ADDRESS) != MDG_ADDRESS)
        return -1;
    return mdg_circuit_join(circuit, all, 2);
}

static int send_text(mdg_circuit circuit, const char *text)
{
    uint32_t len = (uint32_t)strlen(text);
    mdg_packing message;

    if (mdg_begin_packing(circuit, 1, 7, &message) < 0 || mdg_pack(message, &len, sizeof len, MDG_SAFER) < 0 ||
        mdg_pack(message, text, len, MDG_CHEAPER) < 0)
        return failed("pack");
    return mdg_end_packing(message) < 0 ? failed("send") : 0;
}

static int receive_text(mdg_circuit circuit)
{
    char text[256] = "";
    uint32_t len;
    mdg_unpacking message;

    if (mdg_begin_unpacking(circuit, MDG_ANY, 7, 0, MDG_FOREVER, &message) < 0)
        return failed("receive");
    if (mdg_unpack(message, &len, sizeof len, MDG_EXPRESS) < 0 || len >= sizeof text ||
        mdg_unpack(message, text, len, MDG_CHEAPER) < 0 || mdg_end_unpacking(message) < 0)
        return failed("unpack");
    printf("%s\n", text);
    fflush(stdout);
    return 0;
}

static int node(int rank, int socket)
{
    int result;
    mdg_runtime runtime;
    mdg_circuit circuit;

    if (mdg_runtime_open(&runtime) < 0 || mdg_circuit_open(runtime, MDG_TAGS, &circuit) < 0)
        return failed("open");
    if (join(circuit, rank, socket) != rank)
        return failed("join");
    result = rank == 0 ? send_text(circuit, "hello from rank 0") : receive_text(circuit);
    return mdg_close(runtime) < 0 ? failed("close") : result;
}

int main(void)
{
    int ends[2], status, result;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 1;
    /* Before Madrigal is used a process may fork. */
    if (fork() == 0)
        _exit(node(1, ends[1]));
    result = node(0, ends[0]);
    wait(&status);
    return result != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
