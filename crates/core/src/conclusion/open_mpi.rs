//! Ranks of Open MPI that were not offered PMIx (`--mpi pmi1`): `MPI_Init` fails in them (see `env`), and what that means is said
//! here.

/// Why such a rank has failed. What to do comes first, and all of it is short enough for no view to cut it.
pub const CAUSE: &str =
    "an Open MPI program, which needs PMIx: leave --mpi pmi1 out (--mpi none, if each rank is to be alone)";

/// Whether the last lines of a rank's stderr say that `MPI_Init` of Open MPI has failed. These are of Open MPI 1 to 5
/// (`ompi/errhandler/errhandler_predefined.c`, `ompi/runtime/ompi_mpi_abort.c`).
pub fn has_failed_to_init(lines: &[String]) -> bool {
    let banner = ["*** An error occurred in MPI_Init", "Local abort before MPI_INIT completed"];
    lines.iter().any(|line| banner.iter().any(|part| line.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_of_open_mpi_is_known() {
        // Open MPI 5.0.11 and 4.1.4.
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        for text in [
            "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n",
            "[vm:29360] Local abort before MPI_INIT completed completed successfully, but am not able to aggregate error",
            "[vm:17578] *** An error occurred in MPI_Init\n*** on a NULL communicator\n",
        ] {
            assert!(has_failed_to_init(&lines(text)), "{text}");
        }
        assert!(!has_failed_to_init(&lines("*** An error occurred in MPI_Send\n*** MPI_ERR_TRUNCATE\n")));
        assert!(CAUSE.len() < 120, "it is a headline");
    }
}
