/* Counts how often a rank gives its CPU away while it waits for the others: `yields`. Rank 0 writes `yields` if any has, else `spins`. */
#include <mpi.h>
#include <stdio.h>

static long yields;

/* In place of the C library's, for Open MPI too. */
int sched_yield(void)
{
    yields++;
    return 0;
}

int main(int argc, char **argv)
{
    int rank;
    long all, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    yields = 0;
    for (int call = 0; call < 1000; call++) {
        long one = 1;
        MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Allreduce(&yields, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        puts(all ? "yields" : "spins");
    MPI_Finalize();
    return 0;
}
