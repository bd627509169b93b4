/* A rank that says RATE notes a second over the worker socket, until there are COUNT files in PLACE; it prints how many
   it has sent and how many it could not send.

   notes RATE one|each PLACE COUNT

   `one`: all over one connection; `each`: each over a connection of its own, as include/rankrun.h does it. */
#define _GNU_SOURCE
#include <dirent.h>

#include "../include/rankrun.h"

static int files(const char *place)
{
    DIR *directory = opendir(place);
    int count = 0;
    if (directory == NULL)
        exit(1);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static int connected(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("RANKRUN_SOCKET");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (path == NULL || strlen(path) >= sizeof address.sun_path)
        exit(2);
    strcpy(address.sun_path, path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        exit(1);
    return fd;
}

static int say(int fd, long number)
{
    char text[128];
    if (fd < 0) {
        snprintf(text, sizeof text, "note %ld", number);
        return rankrun_note(text);
    }
    int length = snprintf(text, sizeof text, "{\"v\":1,\"type\":\"note\",\"text\":\"note %ld\"}\n", number);
    return send(fd, text, length, MSG_NOSIGNAL) == length;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    long per_tick = atol(argv[1]) / 1000, sent = 0, lost = 0;
    int fd = strcmp(argv[2], "one") == 0 ? connected() : -1, count = atoi(argv[4]);
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (long tick = 0; tick % 4 != 0 || files(argv[3]) < count; tick++) {
        for (long i = 0; i < per_tick; i++)
            say(fd, sent + lost) ? sent++ : lost++;
        next.tv_nsec += 1000000;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        /* What a busy machine makes late is made up for, so that the rate is kept. */
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
    fprintf(stderr, "%ld sent, %ld lost\n", sent, lost);
    return 0;
}
