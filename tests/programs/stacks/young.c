/* Has Python's library, and has not started it. */
#include <dlfcn.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 2 || !dlopen(words[1], RTLD_NOW | RTLD_GLOBAL))
        return 1;
    for (;;)
        pause();
}
