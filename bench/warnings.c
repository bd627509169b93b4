/* Writes COUNT lines to stderr as C programs do: unbuffered, each with a write of its own. */
#include <stdio.h>
#include <stdlib.h>

#include "rank.h"

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 1000;
    int rank = own_rank();
    for (long next = 0; next < count; next++)
        if (fprintf(stderr, "rank %d: warning %ld: something looks odd in this cell\n", rank, next) < 0)
            return 1;
    return 0;
}
