// Ranks of MPICH go on without one that is gone: what its ch4 device offers of ULFM. Rank 1 is killed. The others make a
// communicator of those who are left, add up, and finalize; `get_failed leave`: exit without that, since UCX fails in MPI_Finalize where a
// connection to another node is lost.

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int me, size = 0, flag;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 1) {
        kill(getpid(), SIGKILL);
    }
    MPI_Group failed, world, rest;
    while (size == 0) {
        MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed);
        MPI_Group_size(failed, &size);
        MPI_Iprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        usleep(1000);
    }
    MPI_Comm left;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_difference(world, failed, &rest);
    int one = 1, sum = 0;
    if (MPI_Comm_create_group(MPI_COMM_WORLD, rest, 7, &left) != MPI_SUCCESS ||
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, left) != MPI_SUCCESS) {
        return 4;
    }
    printf("failed %d sum %d\n", size, sum);
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "leave") == 0) {
        _exit(0);
    }
    MPI_Finalize();
    return 0;
}
