/* For C and C++ programs that rankrun starts: what a rank has to say of itself (docs/worker-socket.md).
 *
 * Header only, C99 or C++11, needs POSIX. Each call uses a connection of its own, never waits longer than 0.25 s, and does
 * nothing where there is no rankrun. None of them allocates, so that they can be called from a terminate handler.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef RANKRUN_H
#define RANKRUN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct rankrun_line {
    size_t used;
    char text[32768];
};

/* Adds `"name":"value",`, without the end of a value that is too long; a value of NULL adds nothing. */
static inline void rankrun_add_text(struct rankrun_line *line, const char *name, const char *value) {
    const size_t limit = line->used + 8192 < sizeof line->text ? line->used + 8192 : sizeof line->text;
    if (value == NULL || line->used + 128 > sizeof line->text) return;
    line->used += (size_t)snprintf(line->text + line->used, 64, "\"%.32s\":\"", name);
    for (; *value != '\0'; value++) {
        const unsigned char c = (unsigned char)*value;
        /* At the beginning of a character of up to 4 bytes there must be room for it, the mark and the end. */
        if ((c & 0xC0) != 0x80 && line->used + 48 > limit) {
            line->used += (size_t)snprintf(line->text + line->used, 32, " [... cut by rankrun]");
            break;
        }
        if (c < 0x20 || c == '"' || c == '\\')
            line->used += (size_t)snprintf(line->text + line->used, 8, "\\u%04x", c);
        else if (line->used + 40 < sizeof line->text)
            line->text[line->used++] = (char)c;
    }
    line->used += (size_t)snprintf(line->text + line->used, 4, "\",");
}

/* Begins a line; the caller adds to it and sends it. */
static inline void rankrun_begin(struct rankrun_line *line, const char *type, int code) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    line->used = (size_t)snprintf(line->text, 128, "{\"v\":1,\"type\":\"%.16s\",\"time\":%lld.%09ld,\"code\":%d,", type,
                                  (long long)now.tv_sec, now.tv_nsec, code);
}

/* Sends a line after a greeting. Returns whether the agent has got it. */
static inline int rankrun_send(struct rankrun_line *line) {
    const char *path = getenv("RANKRUN_SOCKET"), *rank = getenv("RANKRUN_RANK"), *tag = getenv("RANKRUN_WORKER");
    const struct timeval patience = {0, 250000};
    struct sockaddr_un address;
    int fd, sent = 0, length;
    char hello[224];
    if (path == NULL || strlen(path) >= sizeof address.sun_path) return 0;
    if ((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) return 0;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, strlen(path));
    length = snprintf(hello, sizeof hello,
                      "{\"v\":1,\"type\":\"hello\",\"pid\":%ld,\"rank\":%d,\"kind\":\"c\",\"tag\":\"%.64s\"}\n",
                      (long)getpid(), rank != NULL ? atoi(rank) : 0, tag != NULL ? tag : "");
    line->used += (size_t)snprintf(line->text + line->used - 1, 4, "}\n") - 1;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        sent = send(fd, hello, (size_t)length, MSG_NOSIGNAL) == (ssize_t)length &&
               send(fd, line->text, line->used, MSG_NOSIGNAL) == (ssize_t)line->used;
    close(fd);
    return sent;
}

/* An exception has reached the top: `type` and `message` are the cause of what follows. `message` may be NULL. */
static inline int rankrun_uncaught(const char *type, const char *message) {
    struct rankrun_line line;
    rankrun_begin(&line, "uncaught", 1);
    rankrun_add_text(&line, "exception", type);
    rankrun_add_text(&line, "message", message);
    return rankrun_send(&line);
}

static inline int rankrun_tell(const char *type, const char *text) {
    struct rankrun_line line;
    rankrun_begin(&line, type, 0);
    rankrun_add_text(&line, "text", text);
    return rankrun_send(&line);
}

/* How far this rank is. While notes come, a rank that is busy exiting does not count as stuck. */
static inline int rankrun_note(const char *text) { return rankrun_tell("note", text); }
/* For restarts: a step is done that will not be repeated, such as a checkpoint; this rank is ready (--ready-timeout). */
static inline int rankrun_progress(void) { return rankrun_tell("progress", NULL); }
static inline int rankrun_ready(void) { return rankrun_tell("ready", NULL); }

/* Ends the whole job, with this rank as the culprit and the message as the cause. Does not return. */
static inline void rankrun_abort(int code, const char *message) {
    struct rankrun_line line;
    rankrun_begin(&line, "abort", code);
    rankrun_add_text(&line, "message", message);
    if (!rankrun_send(&line)) fprintf(stderr, "rankrun: aborted: %s\n", message != NULL ? message : "");
    _exit(code > 0 && code < 256 ? code : 1);
}
#endif
