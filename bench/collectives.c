/* The time of MPI's collectives, in microseconds a call: one line for each, on rank 0.

   The argument is for how many milliseconds each is called at least. Before that the ranks run for a while, so that the start of the job
   does not count. Under MPICH, Intel MPI and Open MPI ranks wait for each other by polling: with more ranks than
   CPUs the times say whether a rank that waits gives its CPU away. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL = 1, LARGE = 8192, MOST_RANKS = 64 };

static double in[LARGE * MOST_RANKS], out[LARGE * MOST_RANKS];

static void barrier(int n) { (void)n; MPI_Barrier(MPI_COMM_WORLD); }
static void allreduce(int n) { MPI_Allreduce(in, out, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }
static void reduce(int n) { MPI_Reduce(in, out, n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD); }
static void bcast(int n) { MPI_Bcast(in, n, MPI_DOUBLE, 0, MPI_COMM_WORLD); }
static void gather(int n) { MPI_Gather(in, n, MPI_DOUBLE, out, n, MPI_DOUBLE, 0, MPI_COMM_WORLD); }
static void scatter(int n) { MPI_Scatter(in, n, MPI_DOUBLE, out, n, MPI_DOUBLE, 0, MPI_COMM_WORLD); }
static void allgather(int n) { MPI_Allgather(in, n, MPI_DOUBLE, out, n, MPI_DOUBLE, MPI_COMM_WORLD); }
static void alltoall(int n) { MPI_Alltoall(in, n, MPI_DOUBLE, out, n, MPI_DOUBLE, MPI_COMM_WORLD); }

static const struct {
    const char *name;
    void (*call)(int);
} collectives[] = {
    {"allreduce", allreduce}, {"barrier", barrier}, {"reduce", reduce},       {"bcast", bcast},
    {"gather", gather},       {"scatter", scatter}, {"allgather", allgather}, {"alltoall", alltoall},
};

/* Calls a collective in batches, each twice as large as the one before, until rank 0 has seen this time pass. The seconds of a call. */
static double time_of(void (*call)(int), int n, double bound)
{
    double start, now;
    long count = 0;
    int is_over = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    for (long batch = 10; !is_over; batch *= 2) {
        for (long i = 0; i < batch; i++)
            call(n);
        count += batch;
        now = MPI_Wtime();
        is_over = now - start >= bound;
        MPI_Bcast(&is_over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return (MPI_Wtime() - start) / count;
}

int main(int argc, char **argv)
{
    int rank, size;
    double bound = (argc > 1 ? atoi(argv[1]) : 50) / 1e3;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > MOST_RANKS)
        MPI_Abort(MPI_COMM_WORLD, 2);
    time_of(allreduce, SMALL, 0.3);
    for (unsigned i = 0; i < sizeof collectives / sizeof collectives[0]; i++) {
        for (int n = SMALL; n <= LARGE; n *= LARGE) {
            double time = time_of(collectives[i].call, n, bound);
            if (rank == 0)
                printf("%s-%d %.3f\n", collectives[i].name, n, time * 1e6);
            if (collectives[i].call == barrier)
                break;
        }
    }
    MPI_Finalize();
    return 0;
}
