/* A rank that does nothing until it is ended, and says that it is there by a file in DIRECTORY. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "rank.h"

int main(int argc, char **argv)
{
    char path[4096];
    if (argc < 2)
        return 2;
    snprintf(path, sizeof path, "%s/%d", argv[1], own_rank());
    close(open(path, O_CREAT | O_WRONLY, 0600));
    for (;;)
        pause();
}
