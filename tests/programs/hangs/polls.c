/* Rank 1 polls until there is a file; the others wait for it in a barrier. */
#include <mpi.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, is_there;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1)
        while (access(argv[1], F_OK))
            MPI_Iprobe(MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
