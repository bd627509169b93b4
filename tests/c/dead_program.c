/* A program whose file system stops to answer: `dead_program STOP SEGMENT RANKS`. Each rank opens a segment of shared memory of this name in
   /dev/shm, as transports of MPI do. The last one makes STOP. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **words)
{
    char path[256];
    if (count < 4)
        return 2;
    snprintf(path, sizeof path, "/dev/shm/%s", words[2]);
    int segment = open(path, O_RDWR | O_CREAT, 0600);
    if (segment < 0 || ftruncate(segment, 4096) != 0)
        return 3;
    int *started = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment, 0);
    /* All of this program is read before nobody answers any more. */
    if (started == MAP_FAILED || mlockall(MCL_CURRENT) != 0)
        return 4;
    if (__atomic_add_fetch(started, 1, __ATOMIC_SEQ_CST) == atoi(words[3]) && open(words[1], O_CREAT | O_WRONLY, 0600) < 0)
        return 5;
    for (;;)
        pause();
}
