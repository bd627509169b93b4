/* failing DIRECTORY SIZE [MICROSECONDS]: when all ranks are up, and 50 ms or so long later, rank 0 notes the time (monotonic clock,
   nanoseconds) in the file DIRECTORY/failed and exits with 3. The others wait for their end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "rank.h"

int main(int argc, char **argv)
{
    char path[4096];
    if (argc < 3)
        return 2;
    int rank = own_rank(), size = atoi(argv[2]);
    snprintf(path, sizeof path, "%s/%d", argv[1], rank);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    if (rank != 0)
        for (;;)
            pause();
    for (int other = 0; other < size;) {
        snprintf(path, sizeof path, "%s/%d", argv[1], other);
        if (access(path, F_OK) == 0)
            other++;
        else
            usleep(1000);
    }
    usleep(argc > 3 ? atoi(argv[3]) : 50000);
    struct timespec now;
    snprintf(path, sizeof path, "%s/failed", argv[1]);
    FILE *file = fopen(path, "w");
    clock_gettime(CLOCK_MONOTONIC, &now);
    fprintf(file, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    fclose(file);
    _exit(3);
}
