/* hang_disk MOUNT CONTROL open|read|exec PROGRAM ARG...

   Runs a program with a file system of its own at MOUNT, whose disk hangs at files without a name: to open one, or to read
   one, blocks; to read one, from when on somebody has made CONTROL/armed. With `exec` it hangs at every program that is to be executed
   from there. CONTROL/hangs is made when somebody waits for the disk for the first time, and
   CONTROL/thaw, when somebody makes it, lets all go on. Ends as the program ends. Needs root. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int notifications;

static void must(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(99);
}

static void allow(int fd)
{
    struct fanotify_response response = {.fd = fd, .response = FAN_ALLOW};
    must(write(notifications, &response, sizeof response) == sizeof response, "fanotify response");
    close(fd);
}

static int has_no_name(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, " (deleted)") != NULL;
}

/* Whether the disk does not answer this request. */
static int hangs_at(unsigned at, int fd, const char *armed)
{
    if (at == FAN_OPEN_EXEC_PERM)
        return 1;
    return has_no_name(fd) && (at != FAN_ACCESS_PERM || access(armed, F_OK) == 0);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 99;
    const char *mount_point = argv[1];
    char hangs[4096], thaw[4096], armed[4096];
    snprintf(hangs, sizeof hangs, "%s/hangs", argv[2]);
    snprintf(thaw, sizeof thaw, "%s/thaw", argv[2]);
    snprintf(armed, sizeof armed, "%s/armed", argv[2]);
    unsigned at = strcmp(argv[3], "read") == 0   ? FAN_ACCESS_PERM
                  : strcmp(argv[3], "exec") == 0 ? FAN_OPEN_EXEC_PERM
                                                 : FAN_OPEN_PERM;
    must(unshare(CLONE_NEWNS) == 0, "unshare");
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "mount /");
    mkdir(mount_point, 0700);
    must(mount("none", mount_point, "tmpfs", 0, "mode=0700") == 0, "mount");
    notifications = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC);
    must(notifications >= 0, "fanotify_init");
    must(fanotify_mark(notifications, FAN_MARK_ADD | FAN_MARK_MOUNT, at, AT_FDCWD, mount_point) == 0, "fanotify_mark");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        execvp(argv[4], argv + 4);
        perror(argv[4]);
        _exit(127);
    }
    int held[64], count = 0, thawed = 0, status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (!thawed && access(thaw, F_OK) == 0) {
            thawed = 1;
            while (count > 0)
                allow(held[--count]);
        }
        struct pollfd ready = {.fd = notifications, .events = POLLIN};
        if (poll(&ready, 1, 20) <= 0)
            continue;
        char events[4096] __attribute__((aligned(8)));
        ssize_t length = read(notifications, events, sizeof events);
        struct fanotify_event_metadata *event = (void *)events;
        for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length)) {
            if (thawed || count == 64 || !hangs_at(at, event->fd, armed)) {
                allow(event->fd);
                continue;
            }
            held[count++] = event->fd;
            close(open(hangs, O_CREAT | O_WRONLY, 0666));
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
