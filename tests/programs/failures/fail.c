/* A rank of an MPI program in C. `fail FATE RANK`: that rank meets the fate, the others wait for it in a barrier. */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void hoard(void) {
    const size_t piece = 1 << 20;
    for (;;) {
        char *memory = malloc(piece);
        if (memory != NULL) memset(memory, 'x', piece);
    }
}

static void stop_by_another(void) {
    pid_t other = fork();
    if (other == 0) {
        kill(getppid(), SIGSTOP);
        _exit(0);
    }
    waitpid(other, NULL, 0);
    for (;;) pause();
}

static void meet(const char *fate) {
    if (strcmp(fate, "exit-code") == 0) exit(3);
    if (strcmp(fate, "sigsegv") == 0) kill(getpid(), SIGSEGV);
    if (strcmp(fate, "sigkill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(fate, "sigabrt") == 0) abort();
    if (strcmp(fate, "sigterm") == 0) kill(getpid(), SIGTERM);
    if (strcmp(fate, "sigstop") == 0) stop_by_another();
    if (strcmp(fate, "exit-after-init") == 0) _exit(0);
    if (strcmp(fate, "out-of-memory") == 0) hoard();
    if (strncmp(fate, "abort=", 6) == 0) {
        MPI_Abort(MPI_COMM_WORLD, atoi(fate + 6));
        for (;;) pause();
    }
    fprintf(stderr, "unknown fate %s\n", fate);
    exit(99);
}

int main(int argc, char **argv) {
    if (argc != 3) return 98;
    const char *fate = argv[1];
    const char *own = getenv("RANKRUN_RANK");
    int is_fated = own != NULL && strcmp(own, argv[2]) == 0;
    if (is_fated && strcmp(fate, "exit-before-init") == 0) _exit(0);
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(fate, "exit-after-finalize") == 0) {
        MPI_Finalize();
        _exit(0);
    }
    if (is_fated) meet(fate);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
