/* Runs a command one of whose children is stopped (SIGSTOP) before its first instruction: `stop_child NUMBER COMMAND...`, where the first
   child that it forks has number 1.

   Ends with the exit code of the command. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words)
{
    int status, left;
    if (count < 3)
        return 2;
    left = atoi(words[1]);
    pid_t command = fork();
    if (command == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        execvp(words[2], words + 2);
        _exit(127);
    }
    if (command < 0 || waitpid(command, &status, 0) != command)
        return 77;
    if (ptrace(PTRACE_SETOPTIONS, command, NULL, PTRACE_O_TRACEFORK) != 0)
        return 77;
    ptrace(PTRACE_CONT, command, NULL, NULL);
    for (;;) {
        if (waitpid(command, &status, __WALL) != command)
            return 77;
        if (WIFEXITED(status))
            return WEXITSTATUS(status);
        if (WIFSIGNALED(status))
            return 128 + WTERMSIG(status);
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8)) {
            unsigned long child = 0;
            ptrace(PTRACE_GETEVENTMSG, command, NULL, &child);
            waitpid((pid_t)child, &status, __WALL);
            left--;
            ptrace(PTRACE_DETACH, (pid_t)child, NULL, left ? 0 : SIGSTOP);
            ptrace(left ? PTRACE_CONT : PTRACE_DETACH, command, NULL, NULL);
            if (left)
                continue;
            break;
        }
        int number = WSTOPSIG(status);
        ptrace(PTRACE_CONT, command, NULL, number == SIGTRAP ? 0 : number);
    }
    while (waitpid(command, &status, 0) != command)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
