/* attempts DIRECTORY SIZE: each rank of an attempt makes the file DIRECTORY/ATTEMPT.RANK with the time of its main (monotonic
   clock, nanoseconds). When all ranks of attempt 0 are up, rank 0 notes the time in DIRECTORY/failed and exits with 3; the others
   wait for their end. In the next attempt all exit with 0.

   attempts DIRECTORY SIZE node: in place of that rank 0 kills its launcher's processes on its host: its parent, and that one's. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "rank.h"

/* The whole file is there at once, as seen by others. */
static void note(const char *directory, const char *name)
{
    char path[4096], draft[4200];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    snprintf(draft, sizeof draft, "%s.new", path);
    FILE *file = fopen(draft, "w");
    fprintf(file, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    fclose(file);
    rename(draft, path);
}

static int parent_of(int pid)
{
    char path[64];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%*d %*s %*c %d", &parent) != 1)
        _exit(4);
    fclose(file);
    return parent;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"RANKRUN_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "FLOOR_ATTEMPT"};
    char path[4096], name[64];
    if (argc < 3)
        return 2;
    int rank = own_rank(), size = atoi(argv[2]), attempt = 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            attempt = atoi(getenv(names[i]));
    snprintf(name, sizeof name, "%d.%d", attempt, rank);
    note(argv[1], name);
    if (attempt > 0)
        return 0;
    if (rank != 0)
        for (;;)
            pause();
    for (int other = 0; other < size;) {
        snprintf(path, sizeof path, "%s/0.%d", argv[1], other);
        if (access(path, F_OK) == 0)
            other++;
        else
            usleep(1000);
    }
    usleep(50000);
    note(argv[1], "failed");
    if (argc > 3) {
        int agent = getppid(), guard = parent_of(agent);
        kill(guard, SIGKILL);
        kill(agent, SIGKILL);
        for (;;)
            pause();
    }
    _exit(3);
}
