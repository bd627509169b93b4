/* Hangs in the way that its argument names. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define OUTLINE __attribute__((noinline))

static volatile int zero, calls;

static void OUTLINE forever(void) {
    for (;;) {
        pause();
        calls++;
    }
}

static void OUTLINE handler(int number) {
    (void)number;
    forever();
}

static int OUTLINE compute(int n) {
    while (!zero)
        calls++;
    return n + calls;
}

static int OUTLINE interrupted(int n) {
    signal(SIGALRM, handler);
    alarm(1);
    return compute(n) + 1;
}

/* Its frame has a size that only the frame pointer knows. It ends if epoll_wait fails. */
static int OUTLINE wait_for_event(int n) {
    char space[n];
    struct epoll_event event;
    int epoll = epoll_create1(0);
    memset(space, 0, n);
    if (epoll_wait(epoll, &event, 1, -1) < 0)
        _exit(errno == EINTR ? 7 : 8);
    return space[n / 2];
}

static int OUTLINE serve(int n) {
    return wait_for_event(n) + 1;
}

/* Begins a wait again and again. It ends if one fails. */
static int OUTLINE wait_often(void) {
    struct epoll_event event;
    int epoll = epoll_create1(0);
    write(1, "r", 1);
    for (;;) {
        if (epoll_wait(epoll, &event, 1, 1) < 0)
            _exit(errno == EINTR ? 7 : 8);
        for (int i = 0; i < 100000; i++)
            calls++;
    }
}

static int OUTLINE descend(int n) {
    volatile int here = n;
    if (n == 0)
        forever();
    return descend(n - 1) + here;
}

static volatile sig_atomic_t received;

static void count(int number) {
    (void)number;
    received++;
}

/* Ends with 0 when it has received 500 queued signals, none of which may be lost. */
static int OUTLINE receive(void) {
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGRTMIN + 1, &action, NULL);
    write(1, "r", 1);
    while (received < 500)
        calls++;
    return 0;
}

static void *OUTLINE spin(void *unused) {
    (void)unused;
    compute(1);
    return NULL;
}

static void *OUTLINE rest(void *unused) {
    (void)unused;
    forever();
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *OUTLINE take(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    return NULL;
}

/* Waits with a timeout, which the kernel goes on with after a stop by a call of its own. */
static int OUTLINE wait_for_time(const char *way) {
    struct timespec long_time = {.tv_sec = 100000};
    if (!strcmp(way, "nanosleep"))
        return nanosleep(&long_time, NULL);
    if (!strcmp(way, "poll"))
        return poll(NULL, 0, 100000000);
    clock_gettime(CLOCK_REALTIME, &long_time);
    long_time.tv_sec += 100000;
    pthread_mutex_lock(&lock);
    return pthread_mutex_timedlock(&lock, &long_time);
}

static int OUTLINE threads(void) {
    pthread_t thread;
    pthread_mutex_lock(&lock);
    pthread_create(&thread, NULL, spin, NULL);
    for (int i = 0; i < 3; i++) {
        pthread_create(&thread, NULL, rest, NULL);
        pthread_create(&thread, NULL, take, NULL);
    }
    forever();
    return 0;
}

static char **next_words;

static void *execute(void *unused) {
    (void)unused;
    execv("/proc/self/exe", next_words);
    _exit(9);
}

/* Executes itself, as often as it is told; from a thread, which takes the place of the main thread then. */
static int again(int count, char **words) {
    char left[16];
    pthread_t thread;
    int times = count > 2 ? atoi(words[2]) : 0;
    if (times == 0)
        return 0;
    snprintf(left, sizeof left, "%d", times - 1);
    words[2] = left;
    next_words = words;
    if (!strcmp(words[1], "exec"))
        execute(NULL);
    pthread_create(&thread, NULL, execute, NULL);
    forever();
    return 9;
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
    if (!strcmp(way, "exec") || !strcmp(way, "exec-thread"))
        return again(count, words);
    if (!strcmp(way, "signal"))
        return interrupted(count);
    if (!strcmp(way, "exit")) {
        atexit(forever);
        return 0;
    }
    if (!strcmp(way, "abort")) {
        signal(SIGABRT, handler);
        abort();
    }
    if (!strcmp(way, "epoll"))
        return serve(count * 16);
    if (!strcmp(way, "often"))
        return wait_often();
    if (!strcmp(way, "deep"))
        return descend(2000);
    if (!strcmp(way, "receive"))
        return receive();
    if (!strcmp(way, "nanosleep") || !strcmp(way, "poll") || !strcmp(way, "futex"))
        return wait_for_time(way);
    if (!strcmp(way, "threads"))
        return threads();
    if (!strcmp(way, "main-ends")) {
        pthread_t thread;
        pthread_create(&thread, NULL, spin, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(way, "vfork")) {
        if (vfork() == 0) {
            for (;;)
                pause();
        }
    }
    return compute(1);
}
