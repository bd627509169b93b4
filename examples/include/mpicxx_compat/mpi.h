/* The C++ bindings of MPI-2 over the C API, as far as the programs of examples/seeds use them.

   MPI-3 removed the bindings. Put this directory first on the include path (-I); the real mpi.h is the next one on it.
   What these names mean is written in chapters 2 to 8 of the MPI-2.2 standard. */
#ifndef MPICXX_COMPAT_MPI_H
#define MPICXX_COMPAT_MPI_H

#include_next <mpi.h>

#ifdef __cplusplus

#include <string>

namespace MPI {

/* What MPI::ERRORS_THROW_EXCEPTIONS throws. */
class Exception {
public:
    explicit Exception(int code) : code_(code) {}

    int Get_error_code() const { return code_; }

    int Get_error_class() const
    {
        int result = MPI_ERR_UNKNOWN;
        MPI_Error_class(code_, &result);
        return result;
    }

    std::string Get_error_string() const
    {
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(code_, text, &length);
        return std::string(text, length);
    }

private:
    int code_;
};

/* The C API reports by its return value; the bindings throw what is not MPI_SUCCESS. Under the default error handler
   a call that fails does not return at all, so nothing is thrown then. */
inline void check(int code)
{
    if (code != MPI_SUCCESS)
        throw Exception(code);
}

class Errhandler {
public:
    explicit Errhandler(MPI_Errhandler handle) : handle_(handle) {}
    operator MPI_Errhandler() const { return handle_; }

private:
    MPI_Errhandler handle_;
};

class Comm {
public:
    explicit Comm(MPI_Comm handle) : handle_(handle) {}
    operator MPI_Comm() const { return handle_; }

    int Get_rank() const
    {
        int rank;
        check(MPI_Comm_rank(handle_, &rank));
        return rank;
    }

    int Get_size() const
    {
        int size;
        check(MPI_Comm_size(handle_, &size));
        return size;
    }

    void Set_errhandler(const Errhandler &handler) const { check(MPI_Comm_set_errhandler(handle_, handler)); }
    void Barrier() const { check(MPI_Barrier(handle_)); }
    void Abort(int code) const { MPI_Abort(handle_, code); }

private:
    MPI_Comm handle_;
};

class Intracomm : public Comm {
public:
    using Comm::Comm;
};

/* Handles of some libraries are addresses that are known only when the program is loaded: hence no constants. */
static const Errhandler ERRORS_ARE_FATAL{MPI_ERRORS_ARE_FATAL};
static const Errhandler ERRORS_RETURN{MPI_ERRORS_RETURN};
/* Errors are returned by the library, and thrown by `check`. */
static const Errhandler ERRORS_THROW_EXCEPTIONS{MPI_ERRORS_RETURN};
static const Intracomm COMM_WORLD{MPI_COMM_WORLD};
static const Intracomm COMM_SELF{MPI_COMM_SELF};

inline void Init(int &argc, char **&argv) { check(MPI_Init(&argc, &argv)); }
inline void Init() { check(MPI_Init(nullptr, nullptr)); }
inline void Finalize() { check(MPI_Finalize()); }

inline bool Is_initialized()
{
    int flag;
    check(MPI_Initialized(&flag));
    return flag != 0;
}

inline bool Is_finalized()
{
    int flag;
    check(MPI_Finalized(&flag));
    return flag != 0;
}

inline double Wtime() { return MPI_Wtime(); }

} // namespace MPI

#endif
#endif
