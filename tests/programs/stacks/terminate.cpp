// An exception that nobody catches, and a handler that does not end.
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <unistd.h>
#include <vector>

namespace app {
template <class T> struct Worker {
    __attribute__((noinline)) void run(T item) {
        std::vector<T> items{item};
        std::for_each(items.begin(), items.end(), [](T) { throw std::runtime_error("wrong"); });
    }
};
} // namespace app

static void stuck() {
    for (;;)
        pause();
}

int main() {
    std::set_terminate(stuck);
    app::Worker<int>().run(3);
}
