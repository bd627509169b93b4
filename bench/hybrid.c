/* MPI with OpenMP: in each step the threads of a rank smooth its array, and the ranks add up a norm.

   The argument is the number of steps. Rank 0 prints the mean time of a step in microseconds. How many threads there are, OMP_NUM_THREADS
   says, or else the number of CPUs that the rank may use. */
#include <mpi.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 1 << 17, SWEEPS = 4 };

static double now[LENGTH], next[LENGTH];

static double sweep(const double *from, double *to)
{
    double norm = 0;
#pragma omp parallel for schedule(static) reduction(+ : norm)
    for (long i = 1; i < LENGTH - 1; i++) {
        to[i] = 0.25 * from[i - 1] + 0.5 * from[i] + 0.25 * from[i + 1];
        norm += (to[i] - from[i]) * (to[i] - from[i]);
    }
    return norm;
}

int main(int argc, char **argv)
{
    int rank, level, steps = argc > 1 ? atoi(argv[1]) : 500;
    double start = 0, norm, all = 0;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long i = 0; i < LENGTH; i++)
        now[i] = next[i] = (i * 7919 + rank) % 1000;
    for (int step = -3; step < steps; step++) {
        if (step == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        norm = 0;
        for (int i = 0; i < SWEEPS; i++)
            norm += i % 2 ? sweep(next, now) : sweep(now, next);
        MPI_Allreduce(&norm, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0) {
        printf("hybrid %.3f\n", (MPI_Wtime() - start) / steps * 1e6);
        fprintf(stderr, "%d threads in rank 0, norm %g\n", omp_get_max_threads(), all);
    }
    MPI_Finalize();
    return 0;
}
