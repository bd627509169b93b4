/* Runs a command to which the kernel refuses a system call with EPERM, as some sandboxes do: `deny_call NAME COMMAND...`. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned number;
} calls[] = {
    {"waitid", SYS_waitid},     {"unlinkat", SYS_unlinkat}, {"pipe2", SYS_pipe2},
    {"write", SYS_write},       {"getdents64", SYS_getdents64}, {"clock_gettime", SYS_clock_gettime},
};

int main(int count, char **words)
{
    unsigned call = ~0u;
    for (size_t at = 0; count > 2 && at < sizeof calls / sizeof *calls; at++)
        if (strcmp(words[1], calls[at].name) == 0)
            call = calls[at].number;
    if (call == ~0u)
        return 2;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        perror("seccomp");
        return 77;
    }
    execvp(words[2], words + 2);
    perror(words[2]);
    return 127;
}
