/* Runs a command. The first child of its thread `rankrun-start`, which starts programs by vfork, is stopped (SIGSTOP) before its first
   instruction, and thus before its exec: `stop_before_exec COMMAND...`.

   Ends with the exit code of the command. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whether it is a thread of this process. */
static int is_thread(pid_t which, pid_t process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", (int)process, (int)which);
    return access(path, F_OK) == 0;
}

/* Whether a new process has the name of the thread that starts programs: a child has the name of its parent until its exec. */
static int is_starter(pid_t which)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)which);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (!fgets(name, sizeof name, file))
        name[0] = '\0';
    fclose(file);
    return strcmp(name, "rankrun-start\n") == 0;
}

int main(int count, char **words)
{
    int status, has_stopped = 0;
    if (count < 2)
        return 2;
    pid_t command = fork();
    if (command == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        execvp(words[1], words + 1);
        _exit(127);
    }
    if (command < 0 || waitpid(command, &status, 0) != command)
        return 77;
    /* Threads are traced too. */
    if (ptrace(PTRACE_SETOPTIONS, command, NULL, PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE) != 0)
        return 77;
    ptrace(PTRACE_CONT, command, NULL, NULL);
    for (;;) {
        pid_t which = waitpid(-1, &status, __WALL);
        if (which < 0)
            return 77;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (which == command)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int number = WSTOPSIG(status);
        if (!is_thread(which, command)) {
            /* Its first stop. It may come before that of its parent. */
            int stops = !has_stopped && is_starter(which);
            has_stopped |= stops;
            ptrace(PTRACE_DETACH, which, NULL, stops ? SIGSTOP : 0);
            continue;
        }
        /* A new thread begins with a stop, and events are stops. */
        ptrace(PTRACE_CONT, which, NULL, number == SIGTRAP || number == SIGSTOP ? 0 : number);
    }
}
