/* A rank that has as many children as it may have, and then prints a line: `fork_to_limit`. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    pid_t children[256];
    int count = 0, failed = 0;
    /* Other ranks do the same: a few refusals in a row show that the limit is reached. */
    while (count < 256 && failed < 20) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        if (child > 0)
            children[count++] = child;
        else
            failed++, usleep(1000);
    }
    printf("rank %s has %s children\n", getenv("RANKRUN_RANK"), failed ? "all its" : "256");
    fflush(stdout);
    usleep(200 * 1000);
    for (int i = 0; i < count; i++)
        kill(children[i], SIGKILL);
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    return 0;
}
