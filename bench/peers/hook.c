// What one read(2) costs on a descriptor that is no socket: reads /dev/null `count` times in batches, prints the median in ns.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 400 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int each = argc > 1 ? atoi(argv[1]) / BATCHES : 0, fd = open("/dev/null", O_RDONLY);
    if (each < 1 || fd < 0) return 1;
    static double batches[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        struct timespec s, e;
        char c;
        clock_gettime(CLOCK_MONOTONIC, &s);
        for (int i = 0; i < each; i++)
            if (read(fd, &c, 1) != 0) return 1;
        clock_gettime(CLOCK_MONOTONIC, &e);
        batches[b] = ((e.tv_sec - s.tv_sec) * 1e9 + (e.tv_nsec - s.tv_nsec)) / each;
    }
    qsort(batches, BATCHES, sizeof *batches, ascending);
    printf("%.2f\n", batches[BATCHES / 2]);
    return 0;
}
