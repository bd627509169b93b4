/* A rank of Open MPI with descendants, which `tree` has left to it. `held [--exit CODE | --signal N]`
 *
 * It enters MPI and makes `RANK.leader` in RANKRUN_TEST_DIR. Rank 1 meets its fate when the file `go` is there; the others
 * stay. */

#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *directory = getenv("RANKRUN_TEST_DIR");
    const struct timespec moment = {0, 5000000};
    char path[4096];
    int rank;
    if (directory == NULL) return 98;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(path, sizeof path, "%s/%d.leader", directory, rank);
    if (open(path, O_CREAT | O_WRONLY, 0600) < 0) return 97;
    if (rank == 1 && argc == 3) {
        snprintf(path, sizeof path, "%s/go", directory);
        while (access(path, F_OK) != 0) nanosleep(&moment, NULL);
        if (strcmp(argv[1], "--signal") == 0) kill(getpid(), atoi(argv[2]));
        _exit(atoi(argv[2]));
    }
    for (;;) pause();
}
