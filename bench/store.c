// Clients of torch's store in one process: each sets a value of its own and gets it again, so many times, one after the other. They send what
// torch's own client sends: SET, which has no answer; WAIT for the key, and when that is over GET.
//
//     store PORT CLIENTS TRIPS
//
// Prints the seconds that all of them take together.
//
//     store PORT CLIENTS wake
//
// All of them wait for a key. Prints the seconds from the moment at which it is set until all have been told.
//
//     store serve
//
// Prints its port, and answers such clients without keeping anything: no server that has a socket for each client can be much faster.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { VALUE = 16, REPLY = 8 + VALUE, MOST = 10000 };

struct client {
    int socket;
    long left;
    size_t got;
    // SET, WAIT and GET.
    struct request {
        size_t length;
        unsigned char bytes[64];
    } requests[3];
    int is_waiting;
};

static void check(int is_good, const char *what) {
    if (!is_good) {
        perror(what);
        exit(1);
    }
}

static size_t text(unsigned char *to, const void *bytes, uint64_t length) {
    memcpy(to, &length, 8);
    memcpy(to + 8, bytes, length);
    return 8 + length;
}

static void ask(const struct client *client, int which) {
    const struct request *request = &client->requests[which];
    check(write(client->socket, request->bytes, request->length) == (ssize_t)request->length, "write");
}

static void begin_trip(struct client *client) {
    ask(client, 0);
    ask(client, 1);
    client->is_waiting = 1;
    client->got = 0;
}

static void open_client(struct client *client, int port, int number, long trips) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int on = 1;
    client->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(client->socket >= 0, "socket");
    check(connect(client->socket, (const struct sockaddr *)&address, sizeof address) == 0, "connect");
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // VALIDATE with the magic number, and PING, which is answered.
    static const unsigned char hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 'p', 'i', 'n', 'g'};
    char answer[4];
    check(write(client->socket, hello, sizeof hello) == sizeof hello, "write");
    check(recv(client->socket, answer, 4, MSG_WAITALL) == 4, "ping");
    char key[16];
    const int length = snprintf(key, sizeof key, "/key %d", number);
    const unsigned char operations[] = {1, 6, 3};
    const uint64_t one = 1;
    for (int i = 0; i < 3; i++) {
        unsigned char *const begin = client->requests[i].bytes, *at = begin;
        *at++ = operations[i];
        if (operations[i] == 6) {
            memcpy(at, &one, 8);
            at += 8;
        }
        at += text(at, key, length);
        if (operations[i] == 1) {
            at += text(at, "0123456789abcdef", VALUE);
        }
        client->requests[i].length = at - begin;
    }
    client->left = trips;
}

// The answer to requests that came in one piece, as they are sent.
static size_t answer(const unsigned char *at, const unsigned char *end, unsigned char *out) {
    size_t length = 0;
    const uint64_t value = VALUE;
    while (at < end) {
        uint64_t text = 0;
        switch (*at) {
        case 0:
            at += 5;
            break;
        case 13:
            memcpy(out + length, at + 1, 4);
            length += 4;
            at += 5;
            break;
        case 1:
            memcpy(&text, at + 1, 8);
            at += 9 + text + 8 + VALUE;
            break;
        case 6:
            memcpy(&text, at + 9, 8);
            at += 17 + text;
            out[length++] = 0;
            break;
        default:
            memcpy(&text, at + 1, 8);
            at += 9 + text;
            memcpy(out + length, &value, 8);
            memset(out + length + 8, 'x', VALUE);
            length += REPLY;
        }
    }
    return length;
}

static void serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), set = epoll_create1(EPOLL_CLOEXEC);
    check(listener >= 0 && set >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 &&
              getsockname(listener, (struct sockaddr *)&address, &size) == 0 && listen(listener, MOST) == 0,
          "listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    check(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
    for (;;) {
        struct epoll_event events[64];
        const int ready = epoll_wait(set, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            const int client = events[i].data.fd;
            if (client == listener) {
                event.data.fd = accept(listener, NULL, NULL);
                check(event.data.fd >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) == 0, "accept");
                continue;
            }
            unsigned char in[512], out[512];
            const ssize_t got = read(client, in, sizeof in);
            const size_t length = got > 0 ? answer(in, in + got, out) : 0;
            if (got <= 0 || (length > 0 && write(client, out, length) < 0)) {
                close(client);
            }
        }
    }
}

static double since(const struct timespec *begin) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) + (now.tv_nsec - begin->tv_nsec) / 1e9;
}

static double wake(int set, struct client *clients, int count) {
    static const unsigned char wait[] = "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0go\x0dping";
    static const unsigned char go[] = "\x01\x02\0\0\0\0\0\0\0go\0\0\0\0\0\0\0";
    // The last one sets the key.
    const int waiters = count - 1;
    for (int i = 0; i < waiters; i++) {
        char answer[4];
        check(write(clients[i].socket, wait, sizeof wait - 1) == sizeof wait - 1, "write");
        // Answered when the key is waited for.
        check(recv(clients[i].socket, answer, 4, MSG_WAITALL) == 4, "ping");
    }
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    check(write(clients[waiters].socket, go, sizeof go) == sizeof go, "write");
    for (int left = waiters; left > 0;) {
        struct epoll_event events[256];
        const int ready = epoll_wait(set, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            char told;
            check(read(((struct client *)events[i].data.ptr)->socket, &told, 1) == 1, "read");
            left--;
        }
    }
    return since(&begin);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "serve") == 0) {
        serve();
    }
    check(argc == 4, "store PORT CLIENTS TRIPS");
    const int port = atoi(argv[1]), count = atoi(argv[2]), is_wake = strcmp(argv[3], "wake") == 0;
    const long trips = is_wake ? 1 : atol(argv[3]);
    check(count > 0 && count <= MOST && trips > 0, "1 to 10,000 clients");
    struct rlimit files;
    check(getrlimit(RLIMIT_NOFILE, &files) == 0, "getrlimit");
    files.rlim_cur = files.rlim_max;
    check(setrlimit(RLIMIT_NOFILE, &files) == 0, "setrlimit");
    static struct client clients[MOST];
    const int set = epoll_create1(EPOLL_CLOEXEC);
    check(set >= 0, "epoll_create1");
    for (int i = 0; i < count; i++) {
        open_client(&clients[i], port, i, trips);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        check(epoll_ctl(set, EPOLL_CTL_ADD, clients[i].socket, &event) == 0, "epoll_ctl");
    }
    if (is_wake) {
        printf("%.6f\n", wake(set, clients, count));
        return 0;
    }
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; i++) {
        begin_trip(&clients[i]);
    }
    for (int left = count; left > 0;) {
        struct epoll_event events[64];
        const int ready = epoll_wait(set, events, 64, -1);
        check(ready > 0 || errno == EINTR, "epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct client *client = events[i].data.ptr;
            unsigned char reply[REPLY];
            const ssize_t got = read(client->socket, reply, client->is_waiting ? 1 : REPLY - client->got);
            check(got > 0, "read");
            if (client->is_waiting) {
                client->is_waiting = 0;
                ask(client, 2);
                continue;
            }
            client->got += got;
            if (client->got < REPLY) {
                continue;
            }
            if (--client->left > 0) {
                begin_trip(client);
            } else {
                left--;
            }
        }
    }
    printf("%.6f\n", since(&begin));
    return 0;
}
