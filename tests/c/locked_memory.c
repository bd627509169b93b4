/* Runs a command beside a process that holds the lock on its own memory for ever: `locked_memory JOB COMMAND...`.

   One of its threads maps a file whose file system does not answer. Whoever reads the environment or the mappings of such a process
   waits. The command sees a /tmp and a /dev/shm of its own; a crashed job called JOB has its directory there, and a file of shared memory
   that it has noted. The process and the server of the file system end with the command. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuse_server.h"

#define TOP "/tmp/locked"
#define FILE_NAME TOP "/file"

/* The size of the file, the longest life of the server in milliseconds, and looks at the process, 10 ms apart: as many in a row as show
   that it waits, and as many as there are. */
enum { SIZE = 65536, LIFE = 60000, LOOKS = 10, TRIES = 1000 };

/* A file system with one file, whose writes are not answered. Every second open bypasses the cache, but may map the file: the mapping
   then waits for what the others have written. */
static void serve(int fuse, int command)
{
    static char request[1 << 20], zero[SIZE];
    int opens = 0;
    struct fuse_attr regular = {.ino = 2, .mode = S_IFREG | 0600, .nlink = 1, .size = SIZE};
    struct fuse_attr_out directory = {.attr_valid = 1000, .attr = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 2}};
    struct fuse_attr_out attributes = {.attr_valid = 1000, .attr = regular};
    struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 1000, .attr_valid = 1000, .attr = regular};
    struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .max_background = 16, .max_write = SIZE};
    struct pollfd watched[2] = {{.fd = fuse, .events = POLLIN}, {.fd = command, .events = POLLIN}};
    while (poll(watched, 2, LIFE) > 0 && !watched[1].revents) {
        if (read(fuse, request, sizeof request) < (ssize_t)sizeof(struct fuse_in_header))
            continue;
        struct fuse_in_header *head = (struct fuse_in_header *)request;
        struct fuse_init_in *asked = (struct fuse_init_in *)(head + 1);
        struct fuse_open_out opened = {.fh = 1};
        switch (head->opcode) {
        case FUSE_INIT:
            init.minor = asked->minor < FUSE_KERNEL_MINOR_VERSION ? asked->minor : FUSE_KERNEL_MINOR_VERSION;
            init.max_readahead = asked->max_readahead;
            answer(fuse, head->unique, 0, &init, sizeof init);
            break;
        case FUSE_LOOKUP:
            answer(fuse, head->unique, 0, &entry, sizeof entry);
            break;
        case FUSE_GETATTR:
        case FUSE_SETATTR:
            answer(fuse, head->unique, 0, head->nodeid == 2 ? &attributes : &directory, sizeof attributes);
            break;
        case FUSE_OPEN:
            if (opens++ % 2)
                opened.open_flags = FOPEN_DIRECT_IO | FOPEN_KEEP_CACHE;
            answer(fuse, head->unique, 0, &opened, sizeof opened);
            break;
        case FUSE_READ:
            answer(fuse, head->unique, 0, zero, SIZE);
            break;
        case FUSE_WRITE:
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
            break;
        case FUSE_FLUSH:
        case FUSE_RELEASE:
            answer(fuse, head->unique, 0, NULL, 0);
            break;
        default:
            answer(fuse, head->unique, ENOSYS, NULL, 0);
        }
    }
}

/* The thread that waits with the lock. */
static void *map(void *unused)
{
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open(FILE_NAME, O_RDWR), 0);
    return unused;
}

/* The process. From the start of its thread on it touches no new page: it would wait too. */
static void hold(void)
{
    pthread_t unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(FILE_NAME, O_RDWR);
    volatile char *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || shared == MAP_FAILED)
        _exit(77);
    shared[0] = shared[4096] = 1;
    pthread_create(&unused, NULL, map, NULL);
    for (;;)
        pause();
}

/* Whether a thread of a process is in state D, which does not need its lock to be seen. */
static int waits(pid_t pid)
{
    char path[300], stat[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", pid, task->d_name);
        FILE *file = fopen(path, "r");
        const char *state = file && fgets(stat, sizeof stat, file) ? strrchr(stat, ')') : NULL;
        found |= state && state[2] == 'D';
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return found;
}

int main(int count, char **words)
{
    char path[64], options[128];
    int ready[2];
    pid_t holder;
    if (count < 3)
        return 2;
    /* It may be in the /tmp that is hidden below. */
    int program = open(words[2], O_RDONLY | O_CLOEXEC);
    check(program, words[2]);
    check(unshare(CLONE_NEWNS), "unshare");
    check(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
    check(mount("own", "/tmp", "tmpfs", 0, "mode=1777"), "/tmp");
    check(mount("own", "/dev/shm", "tmpfs", 0, "mode=1777"), "/dev/shm");
    snprintf(path, sizeof path, "/tmp/rankrun-%d", getuid());
    check(mkdir(path, 0700), path);
    snprintf(path, sizeof path, "/tmp/rankrun-%d/%.16s", getuid(), words[1]);
    check(mkdir(path, 0700), path);
    check(open("/dev/shm/unused", O_CREAT | O_RDWR | O_CLOEXEC, 0600), "/dev/shm/unused");
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    check(fuse, "/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
    check(mkdir(TOP, 0700), TOP);
    check(mount("locked", TOP, "fuse", MS_NOSUID | MS_NODEV, options), "mount");
    int command = syscall(SYS_pidfd_open, getpid(), 0);
    check(command, "pidfd_open");
    check(pipe2(ready, O_CLOEXEC), "pipe");
    /* A child of a child: the command does not find it among its children. It ends the process with the lock, whose parent it is. */
    pid_t between = fork();
    check(between, "fork");
    if (between == 0) {
        if (fork() != 0)
            _exit(0);
        prctl(PR_SET_NAME, "locked_fs");
        setsid();
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        holder = fork();
        if (holder == 0) {
            prctl(PR_SET_NAME, "locked_memory");
            close(fuse);
            hold();
        }
        check(write(ready[1], &holder, sizeof holder), "pipe");
        close(ready[1]);
        serve(fuse, command);
        _exit(0);
    }
    waitpid(between, NULL, 0);
    close(ready[1]);
    if (read(ready[0], &holder, sizeof holder) != sizeof holder)
        return 77;
    /* A request that is answered takes less than all these looks. */
    for (int looks = 0, tries = 0; looks < LOOKS; looks = waits(holder) ? looks + 1 : 0) {
        if (tries++ == TRIES) {
            fprintf(stderr, "no process holds the lock on its memory\n");
            return 77;
        }
        usleep(10000);
    }
    fexecve(program, words + 2, environ);
    perror(words[2]);
    return 127;
}
