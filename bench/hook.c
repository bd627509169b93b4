/* What the interpreter hook costs: as a rank, starts a program PAIRS times with the rank's environment and as often
   without the hook, in turns, and prints a line for each pair: wall time with, wall time without, processor time with,
   processor time without, in nanoseconds.

   hook PAIRS PROGRAM [ARGUMENT...]

   The hook is the first entry of PYTHONPATH. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

struct cost {
    long long wall, processor;
};

static long long nanoseconds(struct timeval time)
{
    return time.tv_sec * 1000000000LL + time.tv_usec * 1000LL;
}

static struct cost run(char **command, char **environment)
{
    long long start = now();
    struct rusage used;
    pid_t pid;
    int status;
    if (posix_spawnp(&pid, command[0], NULL, NULL, command, environment) != 0)
        exit(127);
    if (wait4(pid, &status, 0, &used) != pid || status != 0)
        exit(1);
    return (struct cost){now() - start, nanoseconds(used.ru_utime) + nanoseconds(used.ru_stime)};
}

int main(int argc, char **argv)
{
    if (argc < 3 || getenv("RANKRUN_SOCKET") == NULL)
        return 2;
    int pairs = atoi(argv[1]), count = 0, found = 0;
    while (environ[count] != NULL)
        count++;
    char **without = calloc(count + 1, sizeof *without), **next = without;
    for (int i = 0; i < count; i++) {
        char *first = environ[i] + strlen("PYTHONPATH=");
        if (strncmp(environ[i], "PYTHONPATH=", strlen("PYTHONPATH=")) != 0) {
            *next++ = environ[i];
            continue;
        }
        size_t length = strcspn(first, ":");
        found = memmem(first, length, "/hook-", strlen("/hook-")) != NULL;
        if (first[length] == ':' && asprintf(next++, "PYTHONPATH=%s", first + length + 1) < 0)
            return 1;
    }
    if (!found) {
        fprintf(stderr, "there is no hook in this environment\n");
        return 3;
    }
    /* The first start of all reads files that the others find in memory. */
    run(argv + 2, environ);
    for (int i = 0; i < pairs; i++) {
        struct cost cost[2];
        for (int half = 0; half < 2; half++) {
            int which = (i + half) % 2;
            cost[which] = run(argv + 2, which == 0 ? environ : without);
        }
        printf("%lld %lld %lld %lld\n", cost[0].wall, cost[1].wall, cost[0].processor, cost[1].processor);
    }
    return 0;
}
