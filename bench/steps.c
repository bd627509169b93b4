/* A rank that computes in small steps, and counts them in DIRECTORY/RANK, which it maps. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rank.h"

static volatile double sum;

__attribute__((noinline)) static void step(void)
{
    for (int i = 0; i < 50000; i++)
        sum += i * 0.5;
}

int main(int argc, char **argv)
{
    char path[4096];
    int file;
    volatile unsigned long *count;
    if (argc < 2)
        return 2;
    snprintf(path, sizeof path, "%s/%d", argv[1], own_rank());
    file = open(path, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof *count) != 0)
        return 1;
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (count == MAP_FAILED)
        return 1;
    for (;;) {
        step();
        ++*count;
    }
}
