// A C++ rank that tells rankrun of the exception that ends it.
//
//     g++ -std=c++11 -I include -o terminate examples/cpp/terminate.cpp
//     rankrun -n 2 ./terminate throw
//
// Without the handler the report says "killed by SIGABRT"; with it, which exception that was.

#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "rankrun.h"

namespace {

const char *name_of_current_exception() {
    const std::type_info *type = abi::__cxa_current_exception_type();
    if (type == nullptr) return "terminate called without an active exception";
    int status = 0;
    const char *readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    return status == 0 ? readable : type->name();
}

[[noreturn]] void tell_and_abort() {
    const char *type = name_of_current_exception();
    try {
        if (std::current_exception()) throw;
        rankrun_uncaught("std::terminate", type);
    } catch (const std::exception &error) {
        std::cerr << "uncaught " << type << ": " << error.what() << std::endl;
        rankrun_uncaught(type, error.what());
    } catch (...) {
        std::cerr << "uncaught " << type << std::endl;
        rankrun_uncaught(type, nullptr);
    }
    std::abort();
}

}  // namespace

int main(int argc, char **argv) {
    std::set_terminate(tell_and_abort);
    const std::string how = argc > 1 ? argv[1] : "";
    rankrun_note("the program starts");
    if (how == "throw") throw std::runtime_error("failure!");
    if (how == "number") throw 42;
    if (how == "terminate") std::terminate();
    if (how == "abort") rankrun_abort(3, argc > 2 ? argv[2] : "no good");
    return 0;
}
