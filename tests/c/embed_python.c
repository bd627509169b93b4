/* Embeds Python: `embed_python LIBRARY CODE`. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    void *library = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    void (*start)(void) = (void (*)(void))dlsym(library, "Py_Initialize");
    int (*run)(const char *, void *) = (int (*)(const char *, void *))dlsym(library, "PyRun_SimpleStringFlags");
    start();
    return run(words[2], NULL) != 0;
}
