/* Steps of work and a collective. One rank is slow: profile_slow KIND RANK
 *
 * The kinds are cpu, memory, io, lock, branch, and none. The slow rank spends its extra time in forward, touch_pages, write_checkpoint,
 * wait_for_lock or careful_path. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXTRA 0.04
#define OWN __attribute__((noinline))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile double sink;
static char block[1 << 20];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

OWN static void forward(long size) {
    for (long i = 0; i < size; i++) sink += i * 0.5;
}

OWN static void touch_pages(void) {
    size_t size = 16 << 20;
    for (double end = now() + EXTRA; now() < end;) {
        char *area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(area, size, MADV_NOHUGEPAGE);
        for (size_t page = 0; page < size; page += 4096) area[page] = 1;
        munmap(area, size);
    }
}

OWN static void write_checkpoint(int file) {
    for (double end = now() + EXTRA; now() < end;) {
        if (pwrite(file, block, sizeof block, 0) < 0) perror("pwrite");
        fsync(file);
    }
}

OWN static void wait_for_lock(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

static void *hold(void *unused) {
    (void)unused;
    struct timespec held = {0, (long)(EXTRA * 1e9)}, free = {0, 500000};
    for (;;) {
        pthread_mutex_lock(&lock);
        nanosleep(&held, NULL);
        pthread_mutex_unlock(&lock);
        nanosleep(&free, NULL);
    }
    return NULL;
}

OWN static void fast_path(void) { forward(1000000); }

OWN static void careful_path(void) {
    for (double end = now() + EXTRA; now() < end;)
        for (int i = 0; i < 1000; i++) sink += i % 3;
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "none";
    int slow_rank = argc > 2 ? atoi(argv[2]) : -1, rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int slow = rank == slow_rank, file = -1;
    if (slow && !strcmp(kind, "io")) {
        char path[4096];
        snprintf(path, sizeof path, "%s/checkpoint", getenv("RANKRUN_TEST_DIR"));
        file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    }
    if (slow && !strcmp(kind, "lock")) {
        pthread_t thread;
        pthread_create(&thread, NULL, hold, NULL);
    }
    printf("rank %d steps\n", rank);
    fflush(stdout);
    for (long step = 0;; step++) {
        if (!strcmp(kind, "branch")) {
            if (slow) careful_path();
            else fast_path();
        } else {
            forward(slow && !strcmp(kind, "cpu") ? 30000000 : 1000000);
        }
        if (slow && !strcmp(kind, "memory")) touch_pages();
        if (slow && !strcmp(kind, "io")) write_checkpoint(file);
        if (slow && !strcmp(kind, "lock")) wait_for_lock();
        double own = 1, sum;
        MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    return 0;
}
