/* Collective operations and communicators. */
#include "bed.h"

#include <unistd.h>

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Nothing but what every job does: begin, meet, end. */
void test_brief(int count, char **arguments) {
    (void)count;
    (void)arguments;
}

/* allreduce BYTES ROUNDS: right sums, and the median microseconds of one. */
void test_allreduce(int count, char **arguments) {
    int numbers = (int)(argument(arguments, 1, 8) / 8);
    long rounds = argument(arguments, 2, 1000);
    double *in = must_alloc((size_t)numbers * 8), *out = must_alloc((size_t)numbers * 8), *times = must_alloc((size_t)rounds * sizeof *times);
    for (long round = -rounds / 10 - 1; round < rounds; round++) {
        for (int i = 0; i < numbers; i++)
            in[i] = rank + i + (double)round;
        double begin = now();
        MPI_Allreduce(in, out, numbers, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0)
            times[round] = now() - begin;
        for (int i = 0; i < numbers; i += numbers > 64 ? 61 : 1)
            CHECK(out[i] == ranks * (ranks - 1) / 2.0 + ranks * (i + (double)round), "sum %g at %d", out[i], i);
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    double sum = 0;
    for (long i = 0; i < rounds; i++)
        sum += times[i];
    if (rank == 0)
        printf("figure allreduce bytes %d ranks %d median_us %.3f mean_us %.3f\n", numbers * 8, ranks, 1e6 * times[rounds / 2],
               1e6 * sum / (double)rounds);
    free(in);
    free(out);
    free(times);
    (void)count;
}

static void check_alltoallv(uint64_t seed) {
    int *lengths = calloc((size_t)ranks * 4, sizeof *lengths), *from = lengths + ranks, *out_at = from + ranks, *in_at = out_at + ranks;
    int out_all = 0, in_all = 0;
    for (int peer = 0; peer < ranks; peer++) {
        uint64_t there = seed + (uint64_t)(rank * 64 + peer), here = seed + (uint64_t)(peer * 64 + rank);
        lengths[peer] = (int)some_length(&there, 70000);
        from[peer] = (int)some_length(&here, 70000);
        out_at[peer] = out_all;
        in_at[peer] = in_all;
        out_all += lengths[peer];
        in_all += from[peer];
    }
    unsigned char *out = must_alloc((size_t)out_all), *in = must_alloc((size_t)in_all);
    for (int peer = 0; peer < ranks; peer++)
        fill(out + out_at[peer], (size_t)lengths[peer], (uint64_t)(rank * 64 + peer));
    MPI_Alltoallv(out, lengths, out_at, MPI_BYTE, in, from, in_at, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks; peer++)
        expect(in + in_at[peer], (size_t)from[peer], (uint64_t)(peer * 64 + rank), "alltoallv");
    free(out);
    free(in);
    free(lengths);
}

static void check_bcast_and_gather(size_t length, int root) {
    unsigned char *data = must_alloc(length), *all = must_alloc(length * (size_t)ranks);
    if (rank == root)
        fill(data, length, length);
    MPI_Bcast(data, (int)length, MPI_BYTE, root, MPI_COMM_WORLD);
    expect(data, length, length, "bcast");
    fill(data, length, (uint64_t)rank);
    MPI_Gather(data, (int)length, MPI_BYTE, all, (int)length, MPI_BYTE, root, MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks && rank == root; peer++)
        expect(all + (size_t)peer * length, length, (uint64_t)peer, "gather");
    memset(all, 0, length * (size_t)ranks);
    MPI_Request request;
    MPI_Iallgather(data, (int)length, MPI_BYTE, all, (int)length, MPI_BYTE, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int peer = 0; peer < ranks; peer++)
        expect(all + (size_t)peer * length, length, (uint64_t)peer, "iallgather");
    memset(data, 0, length);
    MPI_Scatter(all, (int)length, MPI_BYTE, data, (int)length, MPI_BYTE, root, MPI_COMM_WORLD);
    expect(data, length, (uint64_t)rank, "scatter");
    free(data);
    free(all);
}

/* Collectives of many sizes with every root. */
void test_colls(int count, char **arguments) {
    long rounds = argument(arguments, 1, 5);
    for (long round = 0; round < rounds; round++) {
        check_alltoallv((uint64_t)round);
        for (int root = 0; root < ranks; root++)
            for (size_t length = 1; length <= 300000; length *= 23)
                check_bcast_and_gather(length, root);
        int mine = rank + 1, sum;
        MPI_Scan(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == (rank + 1) * (rank + 2) / 2, "scan %d", sum);
        long *parts = must_alloc((size_t)ranks * sizeof *parts), part;
        for (int i = 0; i < ranks; i++)
            parts[i] = rank * i;
        MPI_Reduce_scatter_block(parts, &part, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        CHECK(part == (long)rank * ranks * (ranks - 1) / 2, "reduce_scatter %ld", part);
        free(parts);
    }
    (void)count;
}

/* Communicators keep their messages apart. */
void test_comms(int count, char **arguments) {
    enum { COPIES = 8 };
    MPI_Comm copies[COPIES], half;
    int values[COPIES], got[COPIES], peer = rank ^ 1;
    for (int i = 0; i < COPIES; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &copies[i]);
    if (peer < ranks) {
        MPI_Request requests[2 * COPIES];
        for (int i = 0; i < COPIES; i++)
            MPI_Irecv(&got[i], 1, MPI_INT, peer, 1, copies[i], &requests[i]);
        for (int i = COPIES - 1; i >= 0; i--) {
            values[i] = rank * 100 + i;
            MPI_Isend(&values[i], 1, MPI_INT, peer, 1, copies[i], &requests[COPIES + i]);
        }
        MPI_Waitall(2 * COPIES, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < COPIES; i++)
            CHECK(got[i] == peer * 100 + i, "%d by communicator %d", got[i], i);
    }
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    int sum, size, place;
    MPI_Comm_size(half, &size);
    MPI_Comm_rank(half, &place);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
    int due = 0;
    for (int i = rank % 2; i < ranks; i += 2)
        due += i;
    CHECK(sum == due, "sum %d of half", sum);
    MPI_Comm_free(&half);
    for (int i = 0; i < COPIES; i++)
        MPI_Comm_free(&copies[i]);
    (void)count;
    (void)arguments;
}

/* The name of a port, left in a file by the job that opened it, which may have to be waited for. */
static void leave_port(const char *file, char *port) {
    char unfinished[4096];
    MPI_Info info;
    MPI_Info_create(&info);
    /* MPICH 5.0 finds no room for the name unless it is told. */
    MPI_Info_set(info, "port_name_size", "255");
    MPI_Open_port(info, port);
    MPI_Info_free(&info);
    snprintf(unfinished, sizeof unfinished, "%s.new", file);
    FILE *out = fopen(unfinished, "w");
    CHECK(out && fputs(port, out) >= 0 && fclose(out) == 0 && rename(unfinished, file) == 0, "cannot write %s", file);
}

static void find_port(const char *file, char *port, int room) {
    FILE *in;
    for (double end = now() + 30; !(in = fopen(file, "r")); usleep(1000))
        CHECK(now() < end, "no port in %s", file);
    CHECK(fgets(port, room, in), "nothing in %s", file);
    fclose(in);
}

/* Two jobs that were started by themselves become one, talk in all directions, and part again (MPI 4.0, section 11.9). */
void test_jobs(int count, char **arguments) {
    CHECK(count > 2, "bed jobs open|join FILE");
    int opens = strcmp(arguments[1], "open") == 0, place, all, sum, number = rank + 1;
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm other, both;
    if (rank == 0 && opens)
        leave_port(arguments[2], port);
    if (rank == 0 && !opens)
        find_port(arguments[2], port, sizeof port);
    if (opens)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other);
    else
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other);
    MPI_Intercomm_merge(other, !opens, &both);
    MPI_Comm_rank(both, &place);
    MPI_Comm_size(both, &all);
    CHECK(all == 2 * ranks, "%d ranks in two jobs of %d", all, ranks);
    MPI_Allreduce(&number, &sum, 1, MPI_INT, MPI_SUM, both);
    CHECK(sum == ranks * (ranks + 1), "sum %d", sum);
    static const size_t lengths[] = {0, 8, 5000, 70000, 2 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int step = 1; step < all; step++) {
            int to = (place + step) % all, from = (place + all - step) % all;
            char *out = must_alloc(lengths[i]), *in = must_alloc(lengths[i]);
            fill(out, lengths[i], 1000 * i + (uint64_t)place);
            MPI_Sendrecv(out, (int)lengths[i], MPI_BYTE, to, step, in, (int)lengths[i], MPI_BYTE, from, step, both, MPI_STATUS_IGNORE);
            expect(in, lengths[i], 1000 * i + (uint64_t)from, "from the other job");
            free(out);
            free(in);
        }
    }
    MPI_Comm_free(&both);
    MPI_Comm_disconnect(&other);
    if (rank == 0 && opens)
        MPI_Close_port(port);
}

/* An attempt to connect that nobody accepts ends when its time is over. */
static void connect_in_vain(char *port) {
    MPI_Comm other;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "timeout", "2");
    double begin = now();
    int code = MPI_Comm_connect(port, info, 0, MPI_COMM_SELF, &other);
    CHECK(code != MPI_SUCCESS, "connected though nobody accepts");
    CHECK(now() < begin + 4.5, "code %d only after %.1f s", code, now() - begin);
    MPI_Info_free(&info);
}

/* expired open|join FILE: one job opens a port and accepts nobody, first while it looks at nothing, then while it looks for messages. */
void test_expired(int count, char **arguments) {
    CHECK(count > 2, "bed expired open|join FILE");
    char port[MPI_MAX_PORT_NAME] = "";
    int found;
    if (strcmp(arguments[1], "open") == 0) {
        leave_port(arguments[2], port);
        sleep(6);
        for (double end = now() + 8; now() < end; usleep(1000))
            MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    find_port(arguments[2], port, sizeof port);
    double begin = now();
    connect_in_vain(port);
    for (; now() < begin + 7.5; usleep(1000))
        MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    connect_in_vain(port);
    /* MPICH's MPI_Finalize asserts, after an attempt in vain, that there was none. */
    printf("ok expired %d\n", ranks);
    fflush(stdout);
    _exit(0);
}

/* Connections of this process to other addresses than its own, by IPv4 or IPv6. */
int connections(void) {
    static const char *tables[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
    char line[512], name[64], link[64];
    int found = 0;
    for (int i = 0; i < 2; i++) {
        FILE *table = fopen(tables[i], "r");
        while (table && fgets(line, sizeof line, table)) {
            char here[33], there[33];
            unsigned state;
            unsigned long inode;
            if (sscanf(line, " %*d: %32[0-9A-F]:%*x %32[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", here, there, &state, &inode) != 4)
                continue;
            for (int fd = 0; state == 1 && strcmp(here, there) && fd < 1024; fd++) {
                snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
                ssize_t length = readlink(name, link, sizeof link - 1);
                link[length < 0 ? 0 : length] = 0;
                snprintf(name, sizeof name, "socket:[%lu]", inode);
                if (strcmp(name, link) == 0) {
                    found++;
                    break;
                }
            }
        }
        if (table)
            fclose(table);
    }
    return found;
}

/* All talk to all, beginning at the same time: afterwards there is one connection for each rank of another host. */
void test_sockets(int count, char **arguments) {
    enum { NAME = 64 };
    char *names = must_alloc((size_t)ranks * NAME), own[NAME] = "";
    int others = 0, *out = must_alloc(sizeof *out * (size_t)ranks), *in = must_alloc(sizeof *in * (size_t)ranks);
    gethostname(own, sizeof own - 1);
    MPI_Allgather(own, NAME, MPI_CHAR, names, NAME, MPI_CHAR, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++) {
        others += strcmp(own, names + (size_t)i * NAME) != 0;
        out[i] = rank * ranks + i;
    }
    for (int round = 0; round < 20; round++)
        MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++)
        CHECK(in[i] == i * ranks + rank, "%d from rank %d", in[i], i);
    MPI_Barrier(MPI_COMM_WORLD);
    int made = connections() - inherited;
    CHECK(made == others, "%d connections with %d ranks of other hosts", made, others);
    MPI_Barrier(MPI_COMM_WORLD);
    free(names);
    free(out);
    free(in);
    (void)count;
    (void)arguments;
}
