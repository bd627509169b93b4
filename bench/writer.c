/* Writes COUNT lines of 83 bytes, "R:NNNNNNN:xxx...x", in pieces of 64 KiB that do not end where lines end,
   as stdio does. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rank.h"

enum { LENGTH = 83, PIECE = 65536, LINES = 4096 };

static void write_all(const char *bytes, size_t left)
{
    while (left > 0) {
        ssize_t done = write(1, bytes, left);
        if (done < 0)
            _exit(1);
        bytes += done;
        left -= done;
    }
}

int main(int argc, char **argv)
{
    static char block[LENGTH * LINES + PIECE];
    long count = argc > 1 ? atol(argv[1]) : 1000;
    int rank = own_rank() % 10;
    size_t held = 0;
    for (long next = 0; next < count;) {
        for (; next < count && held + LENGTH <= sizeof block; next++) {
            char *line = block + held;
            memset(line, 'x', LENGTH);
            line[0] = (char)('0' + rank);
            line[1] = line[9] = ':';
            long rest = next;
            for (int digit = 8; digit > 1; digit--, rest /= 10)
                line[digit] = (char)('0' + rest % 10);
            line[LENGTH - 1] = '\n';
            held += LENGTH;
        }
        size_t whole = next < count ? held - held % PIECE : held;
        for (size_t at = 0; at < whole; at += PIECE)
            write_all(block + at, whole - at < PIECE ? whole - at : PIECE);
        memmove(block, block + whole, held - whole);
        held -= whole;
    }
    return 0;
}
