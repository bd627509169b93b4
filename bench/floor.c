/* The least that starting and ending N processes can cost: posix_spawn each, wait for all.

   floor N PROGRAM [ARGUMENT...]

   Each process gets its number as RANK. When one fails, the others get SIGTERM, and the failure is the exit code; but if
   FLOOR_RESTARTS is set, all are started once more, with FLOOR_ATTEMPT=1. */
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    int size = atoi(argv[1]), count = 0, result = 0, status;
    while (environ[count] != NULL)
        count++;
    char **environment = malloc((count + 3) * sizeof *environment);
    pid_t *pids = malloc(size * sizeof *pids);
    char rank[32];
    memcpy(environment, environ, count * sizeof *environment);
    environment[count] = rank;
    int attempts = getenv("FLOOR_RESTARTS") != NULL ? 2 : 1;
    char number[32];
    environment[count + 1] = number;
    environment[count + 2] = NULL;
    for (int attempt = 0; attempt < attempts; attempt++) {
        snprintf(number, sizeof number, "FLOOR_ATTEMPT=%d", attempt);
        for (int i = 0; i < size; i++) {
            snprintf(rank, sizeof rank, "RANK=%d", i);
            if (posix_spawn(&pids[i], argv[2], NULL, NULL, argv + 2, environment) != 0)
                return 127;
        }
        result = 0;
        while (wait(&status) > 0) {
            if (status == 0 || result != 0)
                continue;
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            for (int i = 0; i < size; i++)
                kill(pids[i], SIGTERM);
        }
        if (result == 0)
            break;
    }
    return result;
}
