/* as_root COMMAND...: owned by root with the mode 4755, it becomes root altogether, so that whoever started it may not end it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count < 2 || setresuid(0, 0, 0) != 0) {
        perror("as_root");
        return 99;
    }
    execvp(words[1], words + 1);
    perror(words[1]);
    return 127;
}
