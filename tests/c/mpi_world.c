/* Ranks of one world: MPI_Init, a message to every other rank through shared memory, and then nothing more until a signal. */
#include <mpi.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (;;)
        pause();
}
