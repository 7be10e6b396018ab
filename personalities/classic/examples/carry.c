/*
 * Vaio: a file goes over a link while its next block is read, and the last one written. `carry take shm://NAME FILE` waits for
 * `carry give shm://NAME FILE`.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <vaio.h>

#define BLOCK (1 << 20)

static char blocks[2][BLOCK];

static int failed(const char *what)
{
    perror(what);
    return 1;
}

/* Both at the same time: `length` bytes go to `to`, and the next block comes from `from`. How many bytes came. */
static ssize_t step(int to, off_t there, char *bytes, size_t length, int from, off_t here, char *next)
{
    struct vaiocb out, in, *both[2] = {&out, &in};

    memset(&out, 0, sizeof out);
    out.aio_sigevent.sigev_notify = SIGEV_NONE;
    in = out;
    out.aio_fildes = to;
    out.aio_offset = there;
    out.aio_buf = bytes;
    out.aio_nbytes = length;
    out.aio_lio_opcode = length > 0 ? LIO_WRITE : LIO_NOP;
    in.aio_fildes = from;
    in.aio_offset = here;
    in.aio_buf = next;
    in.aio_nbytes = BLOCK;
    in.aio_lio_opcode = LIO_READ;
    if (vlio_listio(LIO_WAIT, both, 2, NULL) == 0)
        return vaio_return(&in);
    errno = vaio_error(&in) > 0 ? vaio_error(&in) : vaio_error(&out);
    return -1;
}

/* Everything, from one to the other. Offsets count for the one that is a file; the link has the greater number. */
static int carry(int from, int to)
{
    off_t done = 0;
    ssize_t length = 0, came;
    int turn = 0;

    while ((came = step(to, done, blocks[turn], (size_t)length, from, done + length, blocks[!turn])) > 0) {
        done += length;
        length = came;
        turn = !turn;
    }
    printf("%lld bytes\n", (long long)(done + length));
    return came < 0 ? failed("carry") : vio_close(from < to ? to : from);
}

int main(int argc, char **argv)
{
    int takes = argc > 3 && strcmp(argv[1], "take") == 0, vio = vio_socket();
    int file = argc > 3 ? open(argv[3], takes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0666) : -1;

    if (file < 0)
        return 2;
    if (!takes)
        return vio_connect(vio, argv[2]) < 0 ? failed("connect") : carry(file, vio);
    if (vio_listen(vio, argv[2]) < 0)
        return failed("listen");
    printf("ready\n");
    fflush(stdout);
    vio = vio_accept(vio);
    return vio < 0 ? failed("accept") : carry(vio, file);
}
