/* Rank 1 fails first and tells so half a second later: to find out what has failed takes time. Rank 0 fails 0.2 s after rank 1,
 * tells so at once, and is still cleaning up. Rank 2 tells that it has failed before it was started, which cannot be. */
#include <sys/stat.h>

#include "rankrun.h"

static void wait_for(const char *path) {
    struct stat status;
    const struct timespec step = {0, 1000000};
    while (stat(path, &status) != 0) nanosleep(&step, NULL);
}

static void sign(const char *path) {
    FILE *file = fopen(path, "w");
    if (file != NULL) fclose(file);
}

static void rest(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

int main(void) {
    const int rank = atoi(getenv("RANKRUN_RANK"));
    struct rankrun_line line;
    if (chdir(getenv("RANKRUN_TEST_DIR")) != 0) return 9;
    if (rank == 1) {
        rankrun_begin(&line, "uncaught", 1);
        sign("failed");
        rest(0.5);
        rankrun_add_text(&line, "exception", "Broken");
        rankrun_add_text(&line, "message", "first");
        rankrun_send(&line);
        /* Who is gone when it is looked up may not tell of failures. */
        rest(0.1);
        return 1;
    }
    wait_for("failed");
    if (rank == 2) {
        line.used = (size_t)sprintf(line.text, "{\"v\":1,\"type\":\"uncaught\",\"time\":0.25,");
        rankrun_add_text(&line, "exception", "Broken");
        rankrun_add_text(&line, "message", "a lie");
        rankrun_send(&line);
    }
    rest(0.2);
    if (rank == 0) rankrun_uncaught("Broken", "second");
    rest(600);
    return 1;
}
