/* Vaio's semantics, as POSIX.1-2024 has those of <aio.h>: each way to be told, lists, and files. */
#include "requests.h"

#include <semaphore.h>
#include <signal.h>

/* How ends are told. */
static volatile sig_atomic_t signals, signal_value, signal_code;
static sem_t called;
static pthread_t caller;
static int called_with;

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    signals = signals + 1;
    signal_value = info->si_value.sival_int;
    signal_code = info->si_code;
}

static void on_end(union sigval value)
{
    called_with = value.sival_int;
    caller = pthread_self();
    CHECK(sem_post(&called) == 0);
}

static struct sigevent by_signal(int value)
{
    struct sigevent how;

    memset(&how, 0, sizeof how);
    how.sigev_notify = SIGEV_SIGNAL;
    how.sigev_signo = SIGUSR1;
    how.sigev_value.sival_int = value;
    return how;
}

static struct sigevent by_thread(int value)
{
    struct sigevent how = by_signal(value);

    how.sigev_notify = SIGEV_THREAD;
    how.sigev_notify_function = on_end;
    return how;
}

static void is_called(int with)
{
    CHECK(sem_wait(&called) == 0 && called_with == with && !pthread_equal(caller, pthread_self()));
}

static void tells(void)
{
    struct sigaction action;
    struct vaiocb read, write;
    char few[8];
    int client, server;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sem_init(&called, 0, 0) == 0);
    connected(&client, &server);
    prepare(&read, server, few, sizeof few);
    read.aio_sigevent = by_signal(17);
    CHECK(vaio_read(&read) == 0 && signals == 0 && vio_write(client, "one", 3) == 3 && good(&read) == 3);
    CHECK(signals == 1 && signal_value == 17 && signal_code == SI_ASYNCIO);
    /* At once, and by vio_poll() of another one. */
    prepare(&write, client, "two", 3);
    write.aio_sigevent = by_signal(18);
    CHECK(vaio_write(&write) == 0 && good(&write) == 3 && signals == 2 && signal_value == 18);
    asks_read(&read, server, few, sizeof few);
    CHECK(good(&read) == 3);
    read.aio_sigevent = by_signal(19);
    CHECK(vaio_read(&read) == 0 && vio_write(client, "three", 5) == 5);
    while (signals < 3) {
        struct pollfd other = {client, POLLIN, 0};
        CHECK(vio_poll(&other, 1, 10) == 0);
    }
    CHECK(signal_value == 19 && vaio_error(&read) == 0 && vaio_return(&read) == 5);
    /* One that is taken back is told, too. */
    read.aio_sigevent = by_signal(20);
    CHECK(vaio_read(&read) == 0 && vaio_cancel(server, &read) == AIO_CANCELED && signals == 4 && signal_value == 20);
    /* A thread that was asked for sees to it alone. */
    read.aio_sigevent = by_thread(21);
    CHECK(vaio_read(&read) == 0 && vio_write(client, "four", 4) == 4);
    is_called(21);
    CHECK(vaio_error(&read) == 0 && vaio_return(&read) == 4 && memcmp(few, "four", 4) == 0);
    write.aio_sigevent = by_thread(22);
    CHECK(vaio_write(&write) == 0);
    is_called(22);
    CHECK(good(&write) == 3);
    read.aio_sigevent.sigev_notify = 99;
    FAILS(vaio_read(&read), EINVAL);
    memset(&read.aio_sigevent, 0, sizeof read.aio_sigevent);
    CHECK(vaio_read(&read) == 0 && good(&read) == 3 && signals == 4);
    closed(client, server);
}

static void lists(void)
{
    static char few[3][8];
    struct vaiocb all[4], *list[6] = {&all[0], NULL, &all[1], &all[2], &all[3], NULL};
    struct sigevent how = by_signal(30);
    int client, server, one, before = signals;

    connected(&client, &server);
    for (one = 0; one < 4; one++) {
        prepare(&all[one], one == 0 ? client : server, one == 0 ? "abc" : few[one - 1], one == 0 ? 3 : 1);
        all[one].aio_lio_opcode = one == 0 ? LIO_WRITE : LIO_READ;
    }
    FAILS(vlio_listio(99, list, 6, NULL), EINVAL);
    FAILS(vlio_listio(LIO_WAIT, list, -1, NULL), EINVAL);
    CHECK(vlio_listio(LIO_WAIT, list, 6, NULL) == 0);
    for (one = 0; one < 4; one++)
        CHECK(vaio_error(&all[one]) == 0 && vaio_return(&all[one]) == (one == 0 ? 3 : 1));
    CHECK(few[0][0] == 'a' && few[1][0] == 'b' && few[2][0] == 'c');
    /* One that cannot be, one that is not asked for; the others are served. */
    all[2].aio_fildes = VIO_FIRST + 4000;
    all[3].aio_lio_opcode = LIO_NOP;
    FAILS(vlio_listio(LIO_WAIT, list, 6, NULL), EIO);
    CHECK(vaio_error(&all[2]) == EBADF && vaio_return(&all[2]) == -1 && vaio_error(&all[0]) == 0 && vaio_error(&all[1]) == 0);
    FAILS(vaio_error(&all[3]), EINVAL);
    CHECK(vaio_return(&all[0]) == 3 && vaio_return(&all[1]) >= 1);
    asks_read(&all[1], server, few[0], 8);
    CHECK(good(&all[1]) == 2);
    /* Without a wait: told once, when all are over. */
    prepare(&all[1], server, few[1], 2);
    all[1].aio_lio_opcode = LIO_READ;
    all[2].aio_lio_opcode = 99;
    all[0].aio_lio_opcode = LIO_NOP;
    FAILS(vlio_listio(LIO_NOWAIT, list, 6, &how), EIO);
    CHECK(vaio_error(&all[2]) == EINVAL && vaio_error(&all[1]) == EINPROGRESS && signals == before);
    CHECK(vio_write(client, "de", 2) == 2 && good(&all[1]) == 2 && signals == before + 1 && signal_value == 30);
    how = by_thread(31);
    all[2].aio_lio_opcode = LIO_NOP;
    CHECK(vlio_listio(LIO_NOWAIT, list, 6, &how) == 0 && vaio_error(&all[1]) == EINPROGRESS);
    CHECK(vio_write(client, "fg", 2) == 2);
    is_called(31);
    CHECK(vaio_error(&all[1]) == 0 && vaio_return(&all[1]) == 2);
    /* Nothing to do is done. */
    CHECK(vlio_listio(LIO_NOWAIT, list + 1, 1, &how) == 0 && vlio_listio(LIO_WAIT, list, 0, NULL) == 0);
    is_called(31);
    closed(client, server);
}

/* A file's requests are over when they were asked for. */
static void cancels_files(int file)
{
    char few[8];
    struct vaiocb read;

    asks_read(&read, file, few, sizeof few);
    CHECK(vaio_cancel(file, &read) == AIO_ALLDONE && vaio_cancel(file, NULL) == AIO_ALLDONE && vaio_error(&read) == 0);
    FAILS(vaio_cancel(-1, NULL), EBADF);
}

static void files(void)
{
    char path[] = "/tmp/vaio-XXXXXX", back[64];
    int file = mkstemp(path), again, ends[2], full = open("/dev/full", O_WRONLY);
    struct vaiocb block, *one[1] = {&block};

    CHECK(file >= 0 && (again = open(path, O_WRONLY | O_APPEND)) >= 0);
    asks_write(&block, file, "0123456789", 10);
    CHECK(good(&block) == 10);
    prepare(&block, file, "ab", 2);
    block.aio_offset = 4;
    CHECK(vaio_write(&block) == 0 && good(&block) == 2);
    /* Behind the end, in order, wherever it is asked for. */
    block.aio_fildes = again;
    block.aio_offset = -7;
    CHECK(vaio_write(&block) == 0 && good(&block) == 2);
    asks_write(&block, again, "cd", 2);
    CHECK(good(&block) == 2);
    CHECK(vaio_fsync(O_SYNC, &block) == 0 && good(&block) == 0 && vaio_fsync(O_DSYNC, &block) == 0 && good(&block) == 0);
    FAILS(vaio_fsync(O_APPEND, &block), EINVAL);
    prepare(&block, file, back, sizeof back);
    block.aio_offset = 2;
    CHECK(vaio_read(&block) == 0 && good(&block) == 12 && memcmp(back, "23ab6789abcd", 12) == 0);
    CHECK(lseek(file, 0, SEEK_CUR) == 0);
    block.aio_offset = 100;
    CHECK(vaio_read(&block) == 0 && good(&block) == 0);
    block.aio_offset = -1;
    FAILS(vaio_read(&block), EINVAL);
    asks_read(&block, file, back, 0);
    CHECK(good(&block) == 0);
    prepare(&block, again, back, 1);
    FAILS(vaio_read(&block), EBADF);
    block.aio_lio_opcode = LIO_READ;
    FAILS(vlio_listio(LIO_WAIT, one, 1, NULL), EIO);
    CHECK(vaio_error(&block) == EBADF);
    block.aio_reqprio = -1;
    FAILS(vaio_read(&block), EINVAL);
    CHECK(full >= 0);
    asks_write(&block, full, "x", 1);
    CHECK(over(&block) == ENOSPC);
    FAILS(vaio_return(&block), ENOSPC);
    CHECK(pipe(ends) == 0);
    prepare(&block, ends[0], back, 1);
    FAILS(vaio_read(&block), ESPIPE);
    FAILS(vaio_fsync(O_SYNC, &block), EINVAL);
    cancels_files(file);
    CHECK(unlink(path) == 0 && close(file) == 0 && close(again) == 0 && close(full) == 0);
    prepare(&block, file, back, 1);
    FAILS(vaio_read(&block), EBADF);
    FAILS(vaio_fsync(O_SYNC, &block), EBADF);
}

int main(int argc, char **argv)
{
    where = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    tells();
    lists();
    files();
    printf("good\n");
    return 0;
}
