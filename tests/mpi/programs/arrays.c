/* Global Arrays: a product of matrices against the one computed here, and tickets by fetch-and-add.
   usage: arrays [ORDER] */
#include <ga.h>
#include <macdecls.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double left(int row, int column) { return (row % 7) - 3 + (column % 5); }
static double right(int row, int column) { return (row % 3) - (column % 11); }

static int array(const char *name, int order, double (*value)(int, int)) {
    int sizes[2] = {order, order}, handle = NGA_Create(C_DBL, 2, sizes, (char *)(size_t)name, NULL), low[2], high[2];
    double *row = malloc((size_t)order * sizeof *row), one = 1;
    NGA_Distribution(handle, GA_Nodeid(), low, high);
    GA_Zero(handle);
    /* Rows are written by whoever does not own them, and added once more by everybody, to be taken off again. */
    for (int i = (GA_Nodeid() + 1) % GA_Nnodes(); value && i < order; i += GA_Nnodes()) {
        int from[2] = {i, 0}, to[2] = {i, order - 1}, leap = order;
        for (int j = 0; j < order; j++)
            row[j] = value(i, j) - 1;
        NGA_Put(handle, from, to, row, &leap);
        for (int j = 0; j < order; j++)
            row[j] = 1;
        NGA_Acc(handle, from, to, row, &leap, &one);
    }
    GA_Sync();
    free(row);
    return handle;
}

static int product(int order) {
    int a = array("a", order, left), b = array("b", order, right), c = array("c", order, NULL), wrong = 0;
    GA_Dgemm('N', 'N', order, order, order, 1.0, a, b, 0.0, c);
    double *row = malloc((size_t)order * sizeof *row);
    for (int i = GA_Nodeid(); i < order; i += 13) {
        int from[2] = {i, 0}, to[2] = {i, order - 1}, leap = order;
        NGA_Get(c, from, to, row, &leap);
        for (int j = 0; j < order; j += 7) {
            double sum = 0;
            for (int k = 0; k < order; k++)
                sum += left(i, k) * right(k, j);
            wrong += sum - row[j] > 1e-6 || row[j] - sum > 1e-6;
        }
    }
    free(row);
    GA_Sync();
    GA_Destroy(a);
    GA_Destroy(b);
    GA_Destroy(c);
    return wrong;
}

static int tickets(long each) {
    int size = 1, at = 0, counter = NGA_Create(C_LONG, 1, &size, (char *)(size_t) "counter", NULL), wrong = 0;
    GA_Zero(counter);
    GA_Sync();
    long last = -1;
    for (long i = 0; i < each; i++) {
        long ticket = NGA_Read_inc(counter, &at, 1);
        wrong += ticket <= last || ticket >= each * GA_Nnodes();
        last = ticket;
    }
    GA_Sync();
    wrong += NGA_Read_inc(counter, &at, 0) != each * GA_Nnodes();
    GA_Sync();
    GA_Destroy(counter);
    return wrong;
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    GA_Initialize();
    MA_init(C_DBL, 4000000, 4000000);
    int wrong[2] = {product(count > 1 ? atoi(arguments[1]) : 200), tickets(200)};
    GA_Igop(wrong, 2, "+");
    if (GA_Nodeid() == 0)
        printf(wrong[0] || wrong[1] ? "FAILED arrays: %d wrong in the product, %d wrong tickets\n" : "ok arrays\n", wrong[0], wrong[1]);
    GA_Terminate();
    MPI_Finalize();
    return wrong[0] || wrong[1];
}
