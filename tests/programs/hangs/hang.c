/* A job of MPI that hangs in a certain way, in C, or in C++. The rank in the middle is the odd one. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile double sum;
static char buffer[1 << 20];

static __attribute__((noinline)) void compute(void)
{
    for (;;)
        sum += 1.0;
}

static __attribute__((noinline)) void update(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&lock);
}

static void at_exit(void)
{
    for (;;)
        pause();
}

static __attribute__((noinline)) void hang_in_vfork(void)
{
    if (vfork() == 0)
        for (;;)
            pause();
}

static __attribute__((noinline)) void exchange(int peer)
{
    MPI_Ssend(buffer, sizeof buffer, MPI_CHAR, peer, 1, MPI_COMM_WORLD);
    MPI_Recv(buffer, sizeof buffer, MPI_CHAR, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

#ifdef __cplusplus
#include <exception>
#include <stdexcept>

static void report(void)
{
    for (;;)
        pause();
}

static __attribute__((noinline)) void load(void)
{
    std::set_terminate(report);
    throw std::runtime_error("no data");
}
#endif

static __attribute__((noinline)) void step(void)
{
    int one = 1, all;
    MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, size;
    const char *kind = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!strcmp(kind, "exchange"))
        exchange(rank ^ 1);
    if (rank == size / 2) {
        if (!strcmp(kind, "computes"))
            compute();
        if (!strcmp(kind, "locks"))
            update();
        if (!strcmp(kind, "receives"))
            MPI_Recv(buffer, 1, MPI_CHAR, 0, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!strcmp(kind, "broadcasts"))
            MPI_Bcast(buffer, 1 << 20, MPI_CHAR, 0, MPI_COMM_WORLD);
        if (!strcmp(kind, "exits")) {
            atexit(at_exit);
            exit(0);
        }
        if (!strcmp(kind, "finalizes")) {
            MPI_Finalize();
            return 0;
        }
        if (!strcmp(kind, "vfork"))
            hang_in_vfork();
#ifdef __cplusplus
        if (!strcmp(kind, "terminates"))
            load();
#endif
        if (!strcmp(kind, "stops"))
            raise(SIGSTOP);
    }
    step();
    MPI_Finalize();
    return 0;
}
