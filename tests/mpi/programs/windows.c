/* One-sided communication. */
#include "bed.h"

enum { SLOTS = 64, BULK = 300000 };

static void check_accumulate(MPI_Win window, long *memory, long round) {
    for (int i = 0; i < SLOTS; i++)
        memory[i] = 0;
    MPI_Win_fence(0, window);
    long ones[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        ones[i] = i + rank + round;
    for (int peer = 0; peer < ranks; peer++)
        MPI_Accumulate(ones, SLOTS, MPI_LONG, peer, 0, SLOTS, MPI_LONG, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < SLOTS; i++) {
        long due = ranks * (i + round) + ranks * (ranks - 1) / 2;
        CHECK(memory[i] == due, "round %ld: %ld instead of %ld at %d", round, memory[i], due, i);
    }
    MPI_Win_fence(0, window);
}

/* fence ROUNDS: Win_fence and Accumulate, many times (it hangs where something is lost under load). */
void test_fence(int count, char **arguments) {
    long rounds = argument(arguments, 1, 200), *memory;
    MPI_Win window;
    MPI_Win_allocate(SLOTS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    for (long round = 0; round < rounds; round++)
        check_accumulate(window, memory, round);
    MPI_Win_free(&window);
    (void)count;
}

static void check_put_and_get(void) {
    MPI_Win window;
    unsigned char *memory = must_alloc(BULK * 2), *out = must_alloc(BULK), *in = must_alloc(BULK);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Win_create(memory, BULK * 2, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (size_t length = 1; length <= BULK; length *= 17) {
        fill(out, length, (uint64_t)rank + length);
        memset(memory, 0, BULK * 2);
        MPI_Win_fence(0, window);
        MPI_Put(out, (int)length, MPI_BYTE, next, 8, (int)length, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        expect(memory + 8, length, (uint64_t)before + length, "put");
        memset(in, 0, length);
        MPI_Get(in, (int)length, MPI_BYTE, next, 8, (int)length, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        expect(in, length, (uint64_t)rank + length, "get");
        MPI_Win_fence(0, window);
    }
    /* Every second int of a column there. */
    MPI_Datatype column;
    MPI_Type_vector(1000, 1, 2, MPI_INT, &column);
    MPI_Type_commit(&column);
    int *numbers = (int *)(void *)out, *there = (int *)(void *)memory;
    for (int i = 0; i < 1000; i++)
        numbers[i] = rank * 10000 + i;
    memset(memory, 0, BULK * 2);
    MPI_Win_fence(0, window);
    MPI_Put(numbers, 1000, MPI_INT, next, 0, 1, column, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 1000; i++)
        CHECK(there[2 * i] == before * 10000 + i && there[2 * i + 1] == 0, "column %d holds %d %d", i, there[2 * i], there[2 * i + 1]);
    MPI_Type_free(&column);
    MPI_Win_free(&window);
    free(memory);
    free(out);
    free(in);
}

static void check_locks(void) {
    long *memory, one = 1, old, zero = 0, *seen = calloc((size_t)ranks * 100 + 1, sizeof *seen);
    MPI_Win window;
    MPI_Win_allocate(2 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memory[0] = memory[1] = 0;
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    /* A counter by get and put inside an exclusive lock. */
    for (int i = 0; i < 20; i++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&old, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        old++;
        MPI_Put(&old, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(&old, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    CHECK(old == 20 * ranks, "counter under locks is %ld", old);
    /* Tickets by fetch-and-add: each is given once. */
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < 100; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 1, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(old >= 0 && old < 100 * ranks, "ticket %ld", old);
        seen[old]++;
    }
    MPI_Win_unlock_all(window);
    MPI_Allreduce(MPI_IN_PLACE, seen, 100 * ranks, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 100 * ranks; i++)
        CHECK(seen[i] == 1, "ticket %d was given %ld times", i, seen[i]);
    /* Compare-and-swap: one winner. */
    long mine = 1000 + rank, base = 100 * ranks, won = 0;
    MPI_Win_lock_all(0, window);
    MPI_Compare_and_swap(&mine, &base, &old, MPI_LONG, 0, 1, window);
    MPI_Win_flush(0, window);
    MPI_Win_unlock_all(window);
    won = old == base;
    MPI_Allreduce(MPI_IN_PLACE, &won, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(won == 1, "%ld winners", won);
    MPI_Win_lock_all(0, window);
    MPI_Get_accumulate(&zero, 1, MPI_LONG, &old, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_NO_OP, window);
    MPI_Win_unlock_all(window);
    CHECK(old >= 1000 && old < 1000 + ranks, "the winner wrote %ld", old);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    free(seen);
}

static void check_post_start(void) {
    MPI_Win window;
    MPI_Group world, others;
    double value = -1, mine = rank;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Win_create(&value, sizeof value, sizeof value, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &before, &others);
    MPI_Win_post(others, 0, window);
    MPI_Group_free(&others);
    MPI_Group_incl(world, 1, &next, &others);
    MPI_Win_start(others, 0, window);
    MPI_Put(&mine, 1, MPI_DOUBLE, next, 0, 1, MPI_DOUBLE, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    CHECK(value == before, "%g by post and start", value);
    MPI_Group_free(&others);
    MPI_Group_free(&world);
    MPI_Win_free(&window);
}

/* Everything one-sided, each kind of synchronisation. */
void test_win(int count, char **arguments) {
    check_put_and_get();
    check_locks();
    check_post_start();
    test_fence(count, (char *[]){arguments[0], "5", NULL});
}
