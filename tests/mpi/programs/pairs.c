/* Messages between pairs: matching, order, all sizes, probing, cancelling, truncation. */
#include "bed.h"

#include <pthread.h>

enum { MOST = 2 << 20 };

/* A message goes round, once for each size. */
void test_ring(int count, char **arguments) {
    size_t most = (size_t)argument(arguments, 1, 4 << 20);
    unsigned char *data = must_alloc(most);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (size_t length = 0; length <= most; length = length ? length * 4 : 1) {
        if (rank == 0) {
            fill(data, length, length);
            MPI_Send(data, (int)length, MPI_BYTE, next, 1, MPI_COMM_WORLD);
            memset(data, 0, length);
        }
        MPI_Status status;
        int got;
        MPI_Recv(data, (int)length, MPI_BYTE, before, 1, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        CHECK((size_t)got == length && status.MPI_SOURCE == before, "%d bytes from %d", got, status.MPI_SOURCE);
        expect(data, length, length, "ring");
        if (rank != 0)
            MPI_Send(data, (int)length, MPI_BYTE, next, 1, MPI_COMM_WORLD);
    }
    free(data);
    (void)count;
}

/* Everybody sends to everybody at once by Sendrecv, the same large size. */
void test_exchange(int count, char **arguments) {
    size_t length = (size_t)argument(arguments, 1, 3 << 20);
    unsigned char *out = must_alloc(length), *in = must_alloc(length);
    for (int step = 0; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        fill(out, length, (uint64_t)(rank * 1000 + step));
        memset(in, 0, length);
        MPI_Sendrecv(out, (int)length, MPI_BYTE, to, step, in, (int)length, MPI_BYTE, from, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect(in, length, (uint64_t)(from * 1000 + step), "exchange");
    }
    free(out);
    free(in);
    (void)count;
}

static size_t storm_length(int from, long number) {
    uint64_t state = (uint64_t)from << 32 | (uint64_t)number;
    size_t length = 16 + some_length(&state, number % 16 ? 900 : 120000);
    return length;
}

/* All ranks send many messages to rank 0, which takes them from any source with any tag: those of one sender in order. */
void test_storm(int count, char **arguments) {
    long messages = argument(arguments, 1, 2000);
    unsigned char *data = must_alloc(MOST);
    if (rank != 0) {
        for (long i = 0; i < messages; i++) {
            size_t length = storm_length(rank, i);
            fill(data, length, (uint64_t)i);
            memcpy(data, &i, sizeof i);
            MPI_Send(data, (int)length, MPI_BYTE, 0, (int)(i % 7), MPI_COMM_WORLD);
        }
        free(data);
        return;
    }
    long *expected = calloc((size_t)ranks, sizeof *expected), number;
    for (long i = 0; i < messages * (ranks - 1); i++) {
        MPI_Status status;
        int got;
        MPI_Recv(data, MOST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        memcpy(&number, data, sizeof number);
        CHECK(number == expected[status.MPI_SOURCE], "message %ld of %d where %ld was due", number, status.MPI_SOURCE,
              expected[status.MPI_SOURCE]);
        CHECK(status.MPI_TAG == number % 7, "tag %d of message %ld", status.MPI_TAG, number);
        CHECK((size_t)got == storm_length(status.MPI_SOURCE, number), "%d bytes", got);
        unsigned char head[8];
        uint64_t seed = (uint64_t)number;
        fill(head, sizeof head, seed);
        memcpy(data, head, sizeof head);
        expect(data, (size_t)got, seed, "storm");
        expected[status.MPI_SOURCE]++;
    }
    free(expected);
    free(data);
    (void)count;
}

static size_t mixed_length(uint64_t seed, long round, int from, int to, int number) {
    uint64_t state = seed ^ ((uint64_t)round << 40) ^ ((uint64_t)from << 24) ^ ((uint64_t)to << 12) ^ (uint64_t)number;
    return some_length(&state, MOST);
}

/* A random all-to-all: `each` messages between every pair in every round, of mixed sizes, with one tag, receives posted in order. */
void test_mixed(int count, char **arguments) {
    enum { EACH = 3 };
    long rounds = argument(arguments, 1, 20);
    uint64_t seed = (uint64_t)argument(arguments, 2, 1);
    int total = 2 * EACH * ranks;
    MPI_Request *requests = must_alloc((size_t)total * sizeof *requests);
    unsigned char **data = must_alloc((size_t)total * sizeof *data);
    for (long round = 0; round < rounds; round++) {
        uint64_t state = seed + (uint64_t)round * 77 + (uint64_t)rank;
        int n = 0, late = draw(&state) % 2;
        for (int pass = 0; pass < 2; pass++)
            for (int peer = 0; peer < ranks; peer++)
                for (int i = 0; i < EACH; i++, n++) {
                    int sending = pass == late;
                    size_t length = sending ? mixed_length(seed, round, rank, peer, i) : mixed_length(seed, round, peer, rank, i);
                    data[n] = must_alloc(length);
                    if (sending) {
                        fill(data[n], length, length + (uint64_t)i);
                        MPI_Isend(data[n], (int)length, MPI_BYTE, peer, 5, MPI_COMM_WORLD, &requests[n]);
                    } else
                        MPI_Irecv(data[n], (int)length, MPI_BYTE, peer, 5, MPI_COMM_WORLD, &requests[n]);
                }
        MPI_Waitall(total, requests, MPI_STATUSES_IGNORE);
        n = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int peer = 0; peer < ranks; peer++)
                for (int i = 0; i < EACH; i++, n++) {
                    if (pass != late) {
                        size_t length = mixed_length(seed, round, peer, rank, i);
                        expect(data[n], length, length + (uint64_t)i, "mixed");
                    }
                    free(data[n]);
                }
    }
    free(data);
    free(requests);
    (void)count;
}

/* Every kind of probe, before messages of all ways (eager and rendezvous), with others unexpected in between. */
void test_probe(int count, char **arguments) {
    static const size_t lengths[] = {0, 8, 1000, 16384, 65536, 200000, MOST};
    enum { KINDS = sizeof lengths / sizeof *lengths };
    long rounds = argument(arguments, 1, 10);
    unsigned char *data = must_alloc(MOST), *other = must_alloc(MOST);
    for (long round = 0; round < rounds; round++) {
        if (rank == 0) {
            for (int peer = 1; peer < ranks; peer++)
                for (int kind = 0; kind < KINDS; kind++) {
                    fill(data, lengths[kind], (uint64_t)kind);
                    MPI_Request requests[2];
                    fill(other, 70000, 99);
                    MPI_Isend(other, 70000, MPI_BYTE, peer, 100 + kind, MPI_COMM_WORLD, &requests[0]);
                    MPI_Isend(data, (int)lengths[kind], MPI_BYTE, peer, kind, MPI_COMM_WORLD, &requests[1]);
                    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
                }
            continue;
        }
        for (int kind = 0; kind < KINDS; kind++) {
            MPI_Status status;
            MPI_Message message;
            int got, found = 0, way = (int)((kind + round) % 4);
            if (way == 0)
                MPI_Probe(0, kind, MPI_COMM_WORLD, &status);
            while (way == 1 && !found)
                MPI_Iprobe(0, kind, MPI_COMM_WORLD, &found, &status);
            if (way == 2)
                MPI_Mprobe(0, kind, MPI_COMM_WORLD, &message, &status);
            while (way == 3 && !found)
                MPI_Improbe(MPI_ANY_SOURCE, kind, MPI_COMM_WORLD, &found, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            CHECK((size_t)got == lengths[kind] && status.MPI_TAG == kind, "probe %d tells %d bytes, tag %d", way, got, status.MPI_TAG);
            if (way == 3) {
                MPI_Iprobe(0, kind, MPI_COMM_WORLD, &found, &status);
                CHECK(!found, "a claimed message is found again");
            }
            memset(data, 0, lengths[kind]);
            if (way < 2)
                MPI_Recv(data, (int)lengths[kind], MPI_BYTE, status.MPI_SOURCE, kind, MPI_COMM_WORLD, &status);
            else
                MPI_Mrecv(data, (int)lengths[kind], MPI_BYTE, &message, &status);
            expect(data, lengths[kind], (uint64_t)kind, "probe");
            MPI_Recv(other, 70000, MPI_BYTE, 0, 100 + kind, MPI_COMM_WORLD, &status);
            expect(other, 70000, 99, "unexpected");
        }
    }
    free(data);
    free(other);
    (void)count;
}

/* Receives that nothing matches are cancelled; those posted after them still match. */
void test_cancel(int count, char **arguments) {
    long rounds = argument(arguments, 1, 50);
    int peer = rank ^ 1, value = rank, got = -1, done, canceled;
    if (peer < ranks)
        for (long round = 0; round < rounds; round++) {
            MPI_Request never, real;
            MPI_Status status;
            char space[64];
            MPI_Irecv(space, sizeof space, MPI_BYTE, peer, 77, MPI_COMM_WORLD, &never);
            MPI_Irecv(&got, 1, MPI_INT, peer, 78, MPI_COMM_WORLD, &real);
            MPI_Test(&never, &done, &status);
            CHECK(!done, "a receive without a message is done");
            MPI_Cancel(&never);
            MPI_Wait(&never, &status);
            MPI_Test_cancelled(&status, &canceled);
            CHECK(canceled, "a receive without a message was not cancelled");
            value = rank * 1000 + (int)round;
            MPI_Send(&value, 1, MPI_INT, peer, 78, MPI_COMM_WORLD);
            MPI_Wait(&real, &status);
            CHECK(got == peer * 1000 + (int)round, "%d received", got);
        }
    (void)count;
}

/* A message longer than its receive is an error of the class MPI_ERR_TRUNCATE and harms nothing behind the buffer or after it. */
void test_truncate(int count, char **arguments) {
    static const int lengths[] = {9, 1000, 20000, 1 << 20};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    unsigned char *data = must_alloc(1 << 20);
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths && rank < 2 && ranks > 1; i++) {
        int length = lengths[i / 2], short_by = i % 2 ? length / 2 : 1, after = 42;
        if (rank == 0) {
            MPI_Barrier(MPI_COMM_SELF);
            fill(data, (size_t)length, i);
            MPI_Send(data, length, MPI_BYTE, 1, 3, MPI_COMM_WORLD);
            MPI_Send(&after, 1, MPI_INT, 1, 3, MPI_COMM_WORLD);
            MPI_Recv(&after, 1, MPI_INT, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            continue;
        }
        memset(data, 0xee, 1 << 20);
        int class, code = MPI_Recv(data, length - short_by, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Error_class(code, &class);
        CHECK(class == MPI_ERR_TRUNCATE, "code %d, class %d for %d bytes", code, class, length);
        for (int at = length - short_by; at < length; at++)
            CHECK(data[at] == 0xee, "byte %d behind the buffer was written", at);
        code = MPI_Recv(&after, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(code == MPI_SUCCESS && after == 42, "code %d, value %d after a truncated message", code, after);
        MPI_Send(&after, 1, MPI_INT, 0, 4, MPI_COMM_WORLD);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    free(data);
    (void)count;
    (void)arguments;
}

/* Messages to oneself. */
void test_self(int count, char **arguments) {
    unsigned char *out = must_alloc(MOST), *in = must_alloc(MOST);
    for (size_t length = 0; length <= MOST; length = length ? length * 8 : 1) {
        MPI_Request request;
        fill(out, length, length);
        MPI_Isend(out, (int)length, MPI_BYTE, rank, 9, MPI_COMM_WORLD, &request);
        MPI_Recv(in, (int)length, MPI_BYTE, rank, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        expect(in, length, length, "self");
    }
    free(out);
    free(in);
    (void)count;
    (void)arguments;
}

static void *speak(void *given) {
    int tag = (int)(intptr_t)given, peer = rank ^ 1;
    unsigned char *data = must_alloc(100000);
    for (int round = 0; round < 300 && peer < ranks; round++) {
        uint64_t state = (uint64_t)(round * 16 + tag);
        size_t length = some_length(&state, 100000);
        if (rank < peer) {
            fill(data, length, length);
            MPI_Send(data, (int)length, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
        }
        MPI_Recv(data, 100000, MPI_BYTE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect(data, length, length, "threads");
        if (rank > peer)
            MPI_Send(data, (int)length, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
    }
    free(data);
    return NULL;
}

/* Several threads of each rank speak at once, each with its own tag. */
void test_threads(int count, char **arguments) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, speak, (void *)i) == 0, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    (void)count;
    (void)arguments;
}
