/* Runs a command with a file system that never answers: `dead_fs DIRECTORY COMMAND...`.

   The file system is mounted at DIRECTORY in a mount namespace of the command. It is a FUSE file system whose server,
   a process of its own, reads no request. When the command has ended, so does the server, and with it the mount. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(77);
    }
}

int main(int count, char **words)
{
    char options[128];
    if (count < 3)
        return 2;
    check(unshare(CLONE_NEWNS), "unshare");
    check(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    check(fuse, "/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
    check(mount("dead", words[1], "fuse", MS_NOSUID | MS_NODEV, options), "mount");
    int command = syscall(SYS_pidfd_open, getpid(), 0);
    check(command, "pidfd_open");
    /* A child of a child: the command does not find it among its children. */
    pid_t between = fork();
    check(between, "fork");
    if (between == 0) {
        if (fork() != 0)
            _exit(0);
        prctl(PR_SET_NAME, "dead_fs");
        setsid();
        struct pollfd watched = {.fd = command, .events = POLLIN};
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        while (poll(&watched, 1, -1) < 1)
            ;
        _exit(0);
    }
    waitpid(between, NULL, 0);
    close(command);
    close(fuse);
    execvp(words[2], words + 2);
    perror(words[2]);
    return 127;
}
