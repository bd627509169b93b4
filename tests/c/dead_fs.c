/* Runs a command with a file system that does not answer: `dead_fs [-r [-w FILE | -c | -l FILE | -x PROGRAM FILE]] DIRECTORY COMMAND...`.

   The file system is mounted at DIRECTORY in a mount namespace of the command. It is a FUSE file system whose server,
   a process of its own, reads no request: SIGKILL ends a process that waits for it. When the command has ended, so does the server,
   and with it the mount.

   With `-r` the server reads each request and does not answer: a process that waits for it is in state D, and only the end of the
   server ends it. The server ends 3 s after the command, or 60 s after its start. With `-w FILE` it is an empty directory, and the
   command's working directory, until FILE exists. With `-c` it is the same until a file that was made in it has been closed. With
   `-l FILE` it is mounted when FILE exists, over what DIRECTORY was until then, and FILE is removed. With `-x PROGRAM FILE` every name
   in it is a copy of PROGRAM until FILE exists: what was looked up by then stays known. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuse_server.h"

/* The longest life of a server that reads, and its life after the command, in seconds. */
enum { LIFE = 60, AFTER = 3 };

/* Answers a request as a directory does in which every name is this program. */
static void answer_as_programs(int fuse, const struct fuse_in_header *head, int program)
{
    static char bytes[1 << 17];
    const struct fuse_read_in *wanted = (const struct fuse_read_in *)(head + 1);
    struct stat file;
    if (fstat(program, &file) != 0)
        exit(1);
    struct fuse_attr regular = {.ino = 2, .mode = S_IFREG | 0755, .nlink = 1, .size = file.st_size};
    struct fuse_attr_out attributes = {.attr_valid = LIFE, .attr = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 2}};
    struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = LIFE, .attr_valid = LIFE, .attr = regular};
    struct fuse_open_out opened = {0};
    ssize_t count;
    switch (head->opcode) {
    case FUSE_LOOKUP:
        return answer(fuse, head->unique, 0, &entry, sizeof entry);
    case FUSE_GETATTR:
        if (head->nodeid == 2)
            attributes.attr = regular;
        return answer(fuse, head->unique, 0, &attributes, sizeof attributes);
    case FUSE_OPEN:
        return answer(fuse, head->unique, 0, &opened, sizeof opened);
    case FUSE_READ:
        count = pread(program, bytes, wanted->size < sizeof bytes ? wanted->size : sizeof bytes, wanted->offset);
        return answer(fuse, head->unique, 0, bytes, count < 0 ? 0 : count);
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        return answer(fuse, head->unique, 0, NULL, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        return answer(fuse, head->unique, ENOSYS, NULL, 0);
    }
}

/* The file that was made in the directory. */
enum { NO_FILE, OPEN, CLOSED } file;

/* Answers a request as a directory does, empty at first, in which a file can be made and written. */
static void answer_as_directory(int fuse, const struct fuse_in_header *head)
{
    struct fuse_attr_out attributes = {.attr = {.ino = head->nodeid, .mode = S_IFDIR | 0755, .nlink = 2}};
    struct fuse_attr regular = {.ino = 2, .mode = S_IFREG | 0600, .nlink = 1};
    struct {
        struct fuse_entry_out entry;
        struct fuse_open_out opened;
    } made = {.entry = {.nodeid = 2, .attr = regular}, .opened = {.open_flags = FOPEN_DIRECT_IO}};
    struct fuse_write_out written = {.size = ((const struct fuse_write_in *)(head + 1))->size};
    struct fuse_open_out opened = {0};
    struct fuse_statfs_out space = {{0}};
    switch (head->opcode) {
    case FUSE_GETATTR:
    case FUSE_SETATTR:
        if (head->nodeid == 2)
            attributes.attr = regular;
        return answer(fuse, head->unique, 0, &attributes, sizeof attributes);
    case FUSE_CREATE:
        file = OPEN;
        return answer(fuse, head->unique, 0, &made, sizeof made);
    case FUSE_WRITE:
        return answer(fuse, head->unique, 0, &written, sizeof written);
    case FUSE_FLUSH:
        return answer(fuse, head->unique, 0, NULL, 0);
    case FUSE_RELEASE:
        file = CLOSED;
        return answer(fuse, head->unique, 0, NULL, 0);
    case FUSE_LOOKUP:
        return answer(fuse, head->unique, ENOENT, NULL, 0);
    case FUSE_OPENDIR:
        return answer(fuse, head->unique, 0, &opened, sizeof opened);
    case FUSE_READDIR:
    case FUSE_RELEASEDIR:
        return answer(fuse, head->unique, 0, NULL, 0);
    case FUSE_STATFS:
        return answer(fuse, head->unique, 0, &space, sizeof space);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        return answer(fuse, head->unique, ENOSYS, NULL, 0);
    }
}

static void read_requests(int fuse, int command, const char *until, int takes_file, int program)
{
    static char request[1 << 20];
    time_t end = time(NULL) + LIFE;
    while (time(NULL) < end) {
        struct pollfd watched[2] = {{.fd = fuse, .events = POLLIN}, {.fd = command, .events = POLLIN}};
        poll(watched, command < 0 ? 1 : 2, 1000);
        if (command >= 0 && watched[1].revents) {
            end = time(NULL) + AFTER;
            command = -1;
        }
        if (!(watched[0].revents & POLLIN))
            continue;
        ssize_t length = read(fuse, request, sizeof request);
        struct fuse_in_header *head = (struct fuse_in_header *)request;
        if (length < (ssize_t)sizeof *head)
            continue;
        if (head->opcode == FUSE_INIT) {
            struct fuse_init_in *asked = (struct fuse_init_in *)(head + 1);
            struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .max_background = 16, .max_write = 65536};
            init.minor = asked->minor < FUSE_KERNEL_MINOR_VERSION ? asked->minor : FUSE_KERNEL_MINOR_VERSION;
            init.max_readahead = asked->max_readahead;
            answer(fuse, head->unique, 0, &init, sizeof init);
        } else if (program >= 0) {
            if (access(until, F_OK) != 0)
                answer_as_programs(fuse, head, program);
        } else if (until ? access(until, F_OK) != 0 : takes_file && file != CLOSED) {
            answer_as_directory(fuse, head);
        }
    }
}

int main(int count, char **words)
{
    char options[128];
    const char *until = NULL, *late = NULL;
    int reads = 0, takes_file = 0, program = -1;
    for (; count > 1 && words[1][0] == '-'; words++, count--) {
        if (strcmp(words[1], "-r") == 0)
            reads = 1;
        else if (strcmp(words[1], "-c") == 0)
            takes_file = 1;
        else if (strcmp(words[1], "-x") == 0 && count > 3) {
            check(program = open(words[2], O_RDONLY | O_CLOEXEC), words[2]);
            until = words[3];
            words += 2;
            count -= 2;
        } else if ((strcmp(words[1], "-w") == 0 || strcmp(words[1], "-l") == 0) && count > 2) {
            *(words[1][1] == 'w' ? &until : &late) = words[2];
            words++;
            count--;
        }
    }
    if (count < 3)
        return 2;
    check(unshare(CLONE_NEWNS), "unshare");
    check(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    check(fuse, "/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
    if (!late)
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
        while (late && access(late, F_OK) != 0)
            if (poll(&watched, 1, 10) > 0)
                _exit(0);
        if (late && (mount("dead", words[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0 || unlink(late) != 0))
            _exit(1);
        if (reads)
            read_requests(fuse, command, until, takes_file, program);
        else
            while (poll(&watched, 1, -1) < 1)
                ;
        _exit(0);
    }
    waitpid(between, NULL, 0);
    close(command);
    close(fuse);
    if ((until && program < 0) || takes_file)
        check(chdir(words[1]), "chdir");
    execvp(words[2], words + 2);
    perror(words[2]);
    return 127;
}
