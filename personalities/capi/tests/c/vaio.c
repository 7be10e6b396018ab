/* Vaio's semantics on links, as POSIX.1-2024 has those of <aio.h>: order, ends, what is taken back, waits, several threads. */
#include "requests.h"

/* More than lies between two ends of a link. */
#define HUGE (64 << 20)
#define WRITES 20
#define READS 4
#define PART 300000
#define PAIRS 3
#define ROUNDS 300

static unsigned char *huge;

/* Several writes, all asked for before anything is read, and several reads at a time: everything in its order. */
static void order(void)
{
    static unsigned char back[READS][30000];
    static struct vaiocb writes[WRITES], reads[READS];
    const size_t each = 99991;
    size_t done = 0, at;
    int client, server, one, last;

    connected(&client, &server);
    for (one = 0; one < WRITES; one++)
        asks_write(&writes[one], client, huge + each * (size_t)one, each + (size_t)one);
    while (done < each * WRITES) {
        for (one = 0; one < READS; one++)
            asks_read(&reads[one], server, back[one], sizeof back[one]);
        for (one = 0; one < READS && done < each * WRITES; one++) {
            ssize_t came = good(&reads[one]);
            CHECK(came > 0);
            for (at = 0; at < (size_t)came; at++, done++) {
                /* Each write has one byte more than the last, and begins `each` behind it. */
                size_t part = 0, rest = done;
                while (rest >= each + part && part + 1 < WRITES)
                    rest -= each + part++;
                CHECK(back[one][at] == huge[each * part + rest]);
            }
        }
        for (; one < READS; one++)
            CHECK(vaio_cancel(server, &reads[one]) != AIO_NOTCANCELED);
        /* None is over before one that was asked for before. */
        for (last = WRITES - 1; last > 0 && vaio_error(&writes[last]) == EINPROGRESS; last--)
            ;
        for (one = 0; one < last; one++)
            CHECK(vaio_error(&writes[one]) == 0);
    }
    closed(client, server);
    for (one = 0; one < WRITES; one++)
        CHECK(good(&writes[one]) == (ssize_t)(each + (size_t)one));
}

/* What is left is read before the end, the end stays, and a result is told once. */
static void ends(void)
{
    char few[8];
    struct vaiocb read, write;
    int client, server, error;

    connected(&client, &server);
    memset(&read, 0, sizeof read);
    FAILS(vaio_error(&read), EINVAL);
    FAILS(vaio_return(&read), EINVAL);
    asks_write(&write, client, "twelve bytes", 12);
    CHECK(good(&write) == 12);
    FAILS(vaio_return(&write), EINVAL);
    FAILS(vaio_error(&write), EINVAL);
    CHECK(vio_close(client) == 0);
    asks_read(&read, server, few, sizeof few);
    CHECK(good(&read) == 8 && memcmp(few, "twelve b", 8) == 0);
    asks_read(&read, server, few, sizeof few);
    CHECK(good(&read) == 4 && memcmp(few, "ytes", 4) == 0);
    asks_read(&read, server, few, sizeof few);
    CHECK(good(&read) == 0);
    asks_read(&read, server, few, sizeof few);
    CHECK(good(&read) == 0);
    /* The peer is gone. */
    do {
        asks_write(&write, server, huge, 100000);
    } while (over(&write) == 0 && vaio_return(&write) == 100000);
    error = vaio_error(&write);
    CHECK(error == EPIPE || error == ECONNRESET);
    FAILS(vaio_return(&write), error);
    CHECK(vio_close(server) == 0);
}

/* A peer that goes without reading what it was sent; a read that waits meanwhile. */
static void is_reset(void)
{
    char few[8];
    struct vaiocb read, write;
    int client, server, error;

    connected(&client, &server);
    asks_write(&write, client, "unread", 6);
    CHECK(good(&write) == 6);
    asks_read(&read, client, few, sizeof few);
    CHECK(vaio_error(&read) == EINPROGRESS);
    FAILS(vaio_return(&read), EINPROGRESS);
    FAILS(vaio_read(&read), EINVAL);
    CHECK(vio_close(server) == 0);
    error = over(&read);
    CHECK(error == ECONNRESET || (error == 0 && vaio_return(&read) == 0));
    CHECK(vio_close(client) == 0);
}

static void cancels(void)
{
    static char few[3][8];
    struct vaiocb reads[3], write, behind;
    int client, server, one;
    size_t length, done = 0;

    connected(&client, &server);
    FAILS(vaio_cancel(VIO_FIRST + 4000, NULL), EBADF);
    CHECK(vaio_cancel(server, NULL) == AIO_ALLDONE);
    for (one = 0; one < 3; one++)
        asks_read(&reads[one], server, few[one], sizeof few[one]);
    CHECK(vaio_error(&reads[0]) == EINPROGRESS);
    FAILS(vaio_cancel(client, &reads[1]), EINVAL);
    CHECK(vaio_cancel(server, &reads[1]) == AIO_CANCELED && vaio_error(&reads[1]) == ECANCELED);
    FAILS(vaio_return(&reads[1]), ECANCELED);
    CHECK(vaio_cancel(server, &reads[1]) == AIO_ALLDONE);
    CHECK(vaio_error(&reads[0]) == EINPROGRESS && vaio_error(&reads[2]) == EINPROGRESS);
    /* The others go on in their order. */
    CHECK(vio_write(client, "eight by", 8) == 8 && good(&reads[0]) == 8 && memcmp(few[0], "eight by", 8) == 0);
    CHECK(vio_write(client, "tes", 3) == 3 && good(&reads[2]) == 3 && memcmp(few[2], "tes", 3) == 0);
    /* All of them; what comes then is the next one's. */
    for (one = 0; one < 3; one++)
        asks_read(&reads[one], server, few[one], sizeof few[one]);
    CHECK(vaio_cancel(server, NULL) == AIO_CANCELED && vaio_cancel(server, NULL) == AIO_ALLDONE);
    for (one = 0; one < 3; one++)
        CHECK(vaio_error(&reads[one]) == ECANCELED && vaio_return(&reads[one]) == -1);
    CHECK(vio_write(client, "kept", 4) == 4);
    asks_read(&reads[0], server, few[0], sizeof few[0]);
    CHECK(good(&reads[0]) == 4 && memcmp(few[0], "kept", 4) == 0);
    /* A write of which a part has gone, and one behind it of which nothing has. */
    asks_write(&write, client, huge, HUGE);
    asks_write(&behind, client, huge, 1000);
    CHECK(vaio_error(&write) == EINPROGRESS && vaio_cancel(client, NULL) == AIO_NOTCANCELED);
    CHECK(vaio_error(&behind) == ECANCELED && vaio_error(&write) == 0);
    length = (size_t)vaio_return(&write);
    CHECK(length > 0 && length < HUGE);
    /* As much arrives, and no more. */
    prepare(&write, client, "!", 1);
    CHECK(vaio_write(&write) == 0);
    while (done < length) {
        static unsigned char back[65536];
        asks_read(&reads[0], server, back, length - done < sizeof back ? length - done : sizeof back);
        ssize_t came = good(&reads[0]);
        CHECK(came > 0 && memcmp(back, huge + done, (size_t)came) == 0);
        done += (size_t)came;
    }
    asks_read(&reads[0], server, few[0], sizeof few[0]);
    CHECK(good(&reads[0]) == 1 && few[0][0] == '!' && good(&write) == 1);
    closed(client, server);
}

static void *writes_soon(void *vio)
{
    CHECK(vio_write(*(int *)vio, "now", 3) == 3);
    return NULL;
}

static void suspends(void)
{
    char few[2][8];
    struct vaiocb reads[2];
    const struct vaiocb *both[3] = {&reads[0], NULL, &reads[1]};
    struct timespec none = {0, 0}, some = {0, 2000000}, wrong = {0, 1000000000}, negative = {-1, 0};
    pthread_t thread;
    int clients[2], servers[2], one;

    for (one = 0; one < 2; one++) {
        connected(&clients[one], &servers[one]);
        asks_read(&reads[one], servers[one], few[one], sizeof few[one]);
    }
    FAILS(vaio_suspend(both, 3, &none), EAGAIN);
    FAILS(vaio_suspend(both, 3, &some), EAGAIN);
    FAILS(vaio_suspend(both, 3, &wrong), EINVAL);
    FAILS(vaio_suspend(both, 3, &negative), EINVAL);
    FAILS(vaio_suspend(both, -1, NULL), EINVAL);
    FAILS(vaio_suspend(both + 1, 1, &some), EAGAIN);
    CHECK(vaio_error(&reads[0]) == EINPROGRESS && vaio_error(&reads[1]) == EINPROGRESS);
    for (one = 1; one >= 0; one--) {
        CHECK(pthread_create(&thread, NULL, writes_soon, &clients[one]) == 0);
        CHECK(vaio_suspend(both, one ? 3 : 1, NULL) == 0);
        CHECK(vaio_error(&reads[one]) == 0 && (one == 0 || vaio_error(&reads[0]) == EINPROGRESS));
        CHECK(pthread_join(thread, NULL) == 0 && memcmp(few[one], "now", 3) == 0);
        /* One that is over is enough. */
        CHECK(vaio_suspend(both, 3, NULL) == 0);
    }
    CHECK(vaio_return(&reads[0]) == 3 && vaio_return(&reads[1]) == 3);
    for (one = 0; one < 2; one++)
        closed(clients[one], servers[one]);
}

/* Beside the calls of vio.h: what a poll has read, and a socket that is closed. */
static void beside_vio(void)
{
    char few[8];
    struct vaiocb read, write;
    struct pollfd one;
    int client, server;

    connected(&client, &server);
    prepare(&read, server, few, sizeof few);
    FAILS(vaio_fsync(O_SYNC, &read), EINVAL);
    CHECK(vio_write(client, "polled", 6) == 6);
    one.fd = server;
    one.events = POLLIN;
    CHECK(vio_poll(&one, 1, -1) == 1 && vio_write(client, "more", 4) == 4);
    asks_read(&read, server, few, 4);
    CHECK(good(&read) == 4 && memcmp(few, "poll", 4) == 0);
    asks_read(&read, server, few, 2);
    CHECK(good(&read) == 2 && memcmp(few, "ed", 2) == 0);
    asks_read(&read, server, few, sizeof few);
    CHECK(good(&read) == 4 && memcmp(few, "more", 4) == 0);
    asks_read(&read, server, few, sizeof few);
    CHECK(vaio_error(&read) == EINPROGRESS);
    asks_write(&write, server, "last", 4);
    CHECK(vio_close(server) == 0 && vaio_error(&read) == ECANCELED && vaio_return(&read) == -1 && good(&write) == 4);
    asks_read(&read, client, few, sizeof few);
    CHECK(good(&read) == 4 && memcmp(few, "last", 4) == 0 && vio_close(client) == 0);
    prepare(&read, client, few, 1);
    FAILS(vaio_read(&read), EBADF);
    read.aio_fildes = client = vio_socket();
    FAILS(vaio_read(&read), ENOTCONN);
    CHECK(vio_close(client) == 0);
}

struct ball {
    int vio, by_vio;
    struct vaiocb never;
};

/* There and back, by vaio beside a read that waits for ever, or by vio. */
static void *plays(void *its)
{
    struct ball *ball = (struct ball *)its;
    struct vaiocb read, write;
    const struct vaiocb *both[2] = {&ball->never, &read};
    int round, got;

    for (round = 0; round < ROUNDS; round++) {
        if (ball->by_vio) {
            CHECK(vio_write(ball->vio, &round, sizeof round) == sizeof round);
            CHECK(vio_read(ball->vio, &got, sizeof got) == sizeof got && got == round);
            continue;
        }
        asks_read(&read, ball->vio, &got, sizeof got);
        asks_write(&write, ball->vio, &round, sizeof round);
        CHECK(vaio_suspend(both, 2, NULL) == 0 && vaio_error(&read) == 0 && vaio_return(&read) == sizeof got);
        CHECK(got == round && good(&write) == sizeof round);
    }
    return NULL;
}

/* Several threads wait at the same time; none waits for one that sleeps. */
static void threads(void)
{
    static struct ball balls[PAIRS][2];
    static char none[PAIRS][2];
    pthread_t all[PAIRS][2];
    int idle[2], pair, side;

    connected(&idle[0], &idle[1]);
    for (pair = 0; pair < PAIRS; pair++) {
        connected(&balls[pair][0].vio, &balls[pair][1].vio);
        for (side = 0; side < 2; side++) {
            balls[pair][side].by_vio = pair == 0 || (pair == 1 && side == 0);
            asks_read(&balls[pair][side].never, idle[0], &none[pair][side], 1);
        }
    }
    for (pair = 0; pair < PAIRS; pair++)
        for (side = 0; side < 2; side++)
            CHECK(pthread_create(&all[pair][side], NULL, plays, &balls[pair][side]) == 0);
    for (pair = 0; pair < PAIRS; pair++)
        for (side = 0; side < 2; side++)
            CHECK(pthread_join(all[pair][side], NULL) == 0);
    for (pair = 0; pair < PAIRS; pair++)
        closed(balls[pair][0].vio, balls[pair][1].vio);
    closed(idle[0], idle[1]);
    CHECK(vaio_error(&balls[0][0].never) == ECANCELED);
}

static void *waits(void *block)
{
    over((const struct vaiocb *)block);
    return NULL;
}

static void *gives_up(void *block)
{
    const struct vaiocb *one[1] = {(const struct vaiocb *)block};
    struct timespec some = {0, 50000000};

    FAILS(vaio_suspend(one, 1, &some), EAGAIN);
    return NULL;
}

/* Two threads wait, most likely the first one in the engine. */
static void wait_both(int *clients, int *servers, struct vaiocb *reads, pthread_t *all, void *(*first)(void *))
{
    static char few[2][8];
    int one;

    for (one = 0; one < 2; one++) {
        connected(&clients[one], &servers[one]);
        asks_read(&reads[one], servers[one], few[one], sizeof few[one]);
        CHECK(pthread_create(&all[one], NULL, one == 0 ? first : waits, &reads[one]) == 0);
        usleep(20000);
    }
}

/* One goes, by what another thread does or because its time has passed; the other one still has somebody who looks after it. */
static void is_passed_on(void)
{
    struct vaiocb reads[2];
    pthread_t all[2];
    int clients[2], servers[2], how, one;

    for (how = 0; how < 3; how++) {
        wait_both(clients, servers, reads, all, waits);
        for (one = 0; one < 2; one++) {
            if (how == 0)
                CHECK(vio_write(clients[one], "bytes", 5) == 5);
            else if (how == 1)
                CHECK(vaio_cancel(servers[one], NULL) == AIO_CANCELED);
            else
                CHECK(vio_close(servers[one]) == 0);
            CHECK(pthread_join(all[one], NULL) == 0 && vaio_error(&reads[one]) == (how == 0 ? 0 : ECANCELED));
            CHECK(vio_close(clients[one]) == 0 && (how == 2 || vio_close(servers[one]) == 0));
        }
    }
    wait_both(clients, servers, reads, all, gives_up);
    CHECK(pthread_join(all[0], NULL) == 0 && vio_write(clients[1], "bytes", 5) == 5 && pthread_join(all[1], NULL) == 0);
    CHECK(vaio_error(&reads[0]) == EINPROGRESS && vaio_error(&reads[1]) == 0);
    for (one = 0; one < 2; one++)
        closed(clients[one], servers[one]);
}

struct part {
    int vio;
    unsigned char bytes[PART];
};

static void *writes_parts(void *its)
{
    struct part *part = (struct part *)its;
    struct vaiocb write;
    int round;

    for (round = 0; round < WRITES; round++) {
        asks_write(&write, part->vio, part->bytes, PART);
        CHECK(good(&write) == PART);
    }
    return NULL;
}

/* Two threads write on one link: no write is torn by another one. */
static void whole(void)
{
    static struct part parts[2];
    static unsigned char back[PART];
    struct vaiocb read;
    pthread_t all[2];
    int client, server, one, round;
    size_t done;

    connected(&client, &server);
    for (one = 0; one < 2; one++) {
        parts[one].vio = client;
        memset(parts[one].bytes, 'a' + one, PART);
        CHECK(pthread_create(&all[one], NULL, writes_parts, &parts[one]) == 0);
    }
    for (round = 0; round < 2 * WRITES; round++) {
        for (done = 0; done < PART; done += (size_t)one) {
            asks_read(&read, server, back + done, PART - done);
            CHECK((one = (int)good(&read)) > 0);
        }
        CHECK(memcmp(back, parts[back[0] - 'a'].bytes, PART) == 0);
    }
    for (one = 0; one < 2; one++)
        CHECK(pthread_join(all[one], NULL) == 0);
    closed(client, server);
}

int main(int argc, char **argv)
{
    where = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    huge = (unsigned char *)malloc(HUGE);
    CHECK(huge != NULL);
    fill(huge, HUGE, 5);
    order();
    ends();
    is_reset();
    cancels();
    suspends();
    beside_vio();
    threads();
    is_passed_on();
    whole();
    free(huge);
    printf("good\n");
    return 0;
}
