/* STREAM's triad in each rank, a[i] = b[i] + s * c[i], on arrays that no cache holds: how fast the ranks reach their memory, all at once.

   The argument is the number of passes. Rank 0 prints the mean time of a pass in microseconds, that of the slowest rank: all wait for each
   other after each pass, as ranks of a simulation do. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 8 << 20 };

int main(int argc, char **argv)
{
    int rank, passes = argc > 1 ? atoi(argv[1]) : 50;
    double *a = malloc(LENGTH * sizeof *a), *b = malloc(LENGTH * sizeof *b), *c = malloc(LENGTH * sizeof *c);
    double start = 0, sum = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!a || !b || !c)
        MPI_Abort(MPI_COMM_WORLD, 2);
    /* Written by the rank that reads it: its memory is near the CPU that it runs on now. */
    for (long i = 0; i < LENGTH; i++) {
        a[i] = 0;
        b[i] = i;
        c[i] = 2;
    }
    for (int pass = -1; pass < passes; pass++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (pass == 0)
            start = MPI_Wtime();
        for (long i = 0; i < LENGTH; i++)
            a[i] = b[i] + 3 * c[i];
        sum += a[pass + 1];
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("triad %.3f\n", (MPI_Wtime() - start) / passes * 1e6);
    /* The compiler may leave out no pass. */
    if (sum < 0)
        printf("%f\n", sum);
    MPI_Finalize();
    return 0;
}
