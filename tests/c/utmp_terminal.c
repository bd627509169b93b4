/* A terminal on which somebody is logged in, as far as utmp says: what `wall` and `shutdown` write to.

   Prints the name of its terminal, then whatever is written to it, until its stdin ends. Then the entry is removed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>
#include <utmpx.h>

static void enter(short type, const char *line)
{
    struct utmpx entry;
    struct timeval now;
    memset(&entry, 0, sizeof entry);
    entry.ut_type = type;
    entry.ut_pid = getpid();
    strncpy(entry.ut_line, line, sizeof entry.ut_line - 1);
    /* The last characters of the line, as login programs do. */
    size_t length = strlen(line), width = sizeof entry.ut_id;
    memcpy(entry.ut_id, length > width ? line + length - width : line, length > width ? width : length);
    strncpy(entry.ut_user, type == USER_PROCESS ? "root" : "", sizeof entry.ut_user - 1);
    gettimeofday(&now, NULL);
    entry.ut_tv.tv_sec = now.tv_sec;
    setutxent();
    if (pututxline(&entry) == NULL) {
        perror("pututxline");
        exit(1);
    }
    endutxent();
}

int main(void)
{
    char buffer[4096];
    /* Where no login program ever ran, the file does not exist. */
    close(open("/run/utmp", O_CREAT | O_WRONLY | O_CLOEXEC, 0664));
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        perror("pty");
        return 1;
    }
    const char *path = ptsname(master);
    char line[256];
    snprintf(line, sizeof line, "%s", path + strlen("/dev/"));
    /* The other end stays open, or the master would read an end whenever a writer closes it. */
    int terminal = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0) {
        perror(path);
        return 1;
    }
    enter(USER_PROCESS, line);
    dprintf(1, "%s\n", path);
    struct pollfd sources[2] = {{.fd = 0, .events = POLLIN}, {.fd = master, .events = POLLIN}};
    while (poll(sources, 2, -1) >= 0) {
        if (sources[1].revents & POLLIN) {
            ssize_t count = read(master, buffer, sizeof buffer);
            if (count > 0 && write(1, buffer, count) < 0)
                break;
        }
        if (sources[0].revents != 0 && read(0, buffer, sizeof buffer) <= 0)
            break;
    }
    enter(DEAD_PROCESS, line);
    return 0;
}
