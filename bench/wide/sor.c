/* Successive over-relaxation, red and black, of Laplace's equation: each rank has some rows of a grid, and sends its first and last one to
 * its neighbours behind each half of a sweep. sor COLUMNS ROWS WARM_UP SECONDS: rank 0 prints the sweeps a second behind the warm-up. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define FACTOR 1.9
#define CHECK 10

static int rank, ranks, columns, rows;
static double *grid;

static double *row(int number) {
    return grid + (size_t)number * (size_t)columns;
}

/* Rows 0 and rows + 1 are the neighbours'. */
static void exchange(void) {
    int above = rank ? rank - 1 : MPI_PROC_NULL, below = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(row(1), columns, MPI_DOUBLE, above, 0, row(rows + 1), columns, MPI_DOUBLE, below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(row(rows), columns, MPI_DOUBLE, below, 1, row(0), columns, MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The points of one colour; the largest change. */
static double half_sweep(int colour) {
    double most = 0;
    for (int at = 1; at <= rows; at++) {
        const double *above = row(at - 1), *below = row(at + 1);
        double *here = row(at);
        for (int x = 1 + (at + rank * rows + colour) % 2; x < columns - 1; x += 2) {
            double change = FACTOR * ((above[x] + below[x] + here[x - 1] + here[x + 1]) / 4 - here[x]);
            here[x] += change;
            most = fmax(most, fabs(change));
        }
    }
    return most;
}

static double sweep(void) {
    double most = half_sweep(0);
    exchange();
    most = fmax(most, half_sweep(1));
    exchange();
    return most;
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 5 || (columns = atoi(words[1])) < 3 || (rows = atoi(words[2])) < 1) {
        fprintf(stderr, "usage: sor COLUMNS ROWS WARM_UP SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double warm_up = atof(words[3]), seconds = atof(words[4]);
    size_t points = (size_t)(rows + 2) * (size_t)columns;
    if (!(grid = malloc(points * sizeof *grid)))
        MPI_Abort(MPI_COMM_WORLD, 1);
    srand48(rank + 1);
    for (size_t point = 0; point < points; point++)
        grid[point] = drand48();
    exchange();
    double begun = MPI_Wtime() + warm_up, now = 0, change = 0;
    long sweeps = 0;
    /* Rank 0 says for all when it is over. */
    for (int over = 0; !over;) {
        for (int i = 0; i < CHECK; i++)
            change = sweep();
        double most = 0;
        MPI_Allreduce(&change, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        now = MPI_Wtime();
        sweeps += now < begun ? 0 : CHECK;
        over = rank == 0 && (now >= begun + seconds || !isfinite(most));
        MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    double sum = 0, all = 0;
    for (int at = 1; at <= rows; at++)
        for (int x = 0; x < columns; x++)
            sum += row(at)[x];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && isfinite(all))
        printf("%f sweeps a second\n", (double)sweeps / (now - begun));
    MPI_Finalize();
    return 0;
}
