// What it costs to wake a sleeper on another CPU: two pinned processes hand a token to and fro, first through pipes, then through a
// futex. Prints half of the median round trip in microseconds for each.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 4000 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int to_child[2], to_parent[2];
static int *turn;

static void pipe_parent(void) {
    char c = 0;
    if (write(to_child[1], &c, 1) != 1 || read(to_parent[0], &c, 1) != 1) exit(1);
}

static void pipe_child(void) {
    char c;
    if (read(to_child[0], &c, 1) != 1 || write(to_parent[1], &c, 1) != 1) exit(1);
}

static void hand_over(int to) {
    __atomic_store_n(turn, to, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, turn, FUTEX_WAKE, 1, 0, 0, 0);
}

static void await(int mine, int other) {
    while (__atomic_load_n(turn, __ATOMIC_SEQ_CST) != mine) syscall(SYS_futex, turn, FUTEX_WAIT, other, 0, 0, 0);
}

static void futex_parent(void) {
    hand_over(1);
    await(0, 1);
}

static void futex_child(void) {
    await(1, 0);
    hand_over(0);
}

static double half_trip(int cpu_a, int cpu_b, void (*parent)(void), void (*child)(void)) {
    static double trips[ROUNDS];
    pid_t pid = fork();
    if (pid == 0) {
        pin(cpu_b);
        for (;;) child();
    }
    pin(cpu_a);
    for (int i = 0; i < ROUNDS; i++) {
        double start = now_us();
        parent();
        trips[i] = now_us() - start;
    }
    kill(pid, SIGKILL);
    waitpid(pid, 0, 0);
    qsort(trips, ROUNDS, sizeof *trips, ascending);
    return trips[ROUNDS / 2] / 2;
}

int main(int argc, char **argv) {
    if (argc != 3 || pipe(to_child) || pipe(to_parent)) return 1;
    turn = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turn == MAP_FAILED) return 1;
    int a = atoi(argv[1]), b = atoi(argv[2]);
    printf("%.2f ", half_trip(a, b, pipe_parent, pipe_child));
    fflush(stdout);
    printf("%.2f\n", half_trip(a, b, futex_parent, futex_child));
    return 0;
}
