/* What the file systems of these tests share, which speak to the kernel themselves. */

#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What this machine refuses is no failure of the test. */
static void check(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(77);
    }
}

/* The body has at most 128 KiB. */
static void answer(int fuse, unsigned long long unique, int error, const void *body, size_t length)
{
    static struct {
        struct fuse_out_header head;
        char body[1 << 17];
    } answer;
    answer.head = (struct fuse_out_header){.len = sizeof answer.head + length, .error = -error, .unique = unique};
    memcpy(answer.body, body, length);
    /* The process that asked may be gone. */
    if (write(fuse, &answer, answer.head.len) < 0)
        return;
}
