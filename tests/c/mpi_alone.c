/* Calls MPI_Init, or with "loaded" only asks whether that was called. Says so, and ends when stdin does. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    int is_inited, size = 0;
    if (argc < 2 || strcmp(argv[1], "loaded") != 0)
        MPI_Init(&argc, &argv);
    MPI_Initialized(&is_inited);
    if (is_inited)
        MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("size %d\n", size);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return is_inited ? MPI_Finalize() : 0;
}
