// A rank of an MPI program in C++. `fail FATE RANK`: that rank meets the fate, the others wait for it in a barrier.

#include <cstdlib>
#include <exception>
#include <mpi.h>
#include <stdexcept>
#include <string>

static void meet(const std::string &fate) {
    if (fate == "exception") throw std::runtime_error("failure!");
    if (fate == "terminate") std::terminate();
    if (fate == "exit-code") std::exit(3);
    std::exit(99);
}

int main(int argc, char **argv) {
    if (argc != 3) return 98;
    const char *own = std::getenv("RANKRUN_RANK");
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    if (own != nullptr && std::string(own) == argv[2]) meet(argv[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}
