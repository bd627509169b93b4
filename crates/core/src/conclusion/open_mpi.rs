//! What ends of Open MPI's ranks mean that it does not say itself: of ranks that were not offered PMIx (`--mpi pmi1`), whose
//! `MPI_Init` fails (see `env`), and of errors for which it does not find its words.

/// Why such a rank has failed. What to do comes first, and all of it is short enough for no view to cut it.
pub const CAUSE: &str =
    "an Open MPI program, which needs PMIx: leave --mpi pmi1 out (--mpi none, if each rank is to be alone)";

/// Whether the last lines of a rank's stderr say that `MPI_Init` of Open MPI has failed. These are of Open MPI 1 to 5
/// (`ompi/errhandler/errhandler_predefined.c`, `ompi/runtime/ompi_mpi_abort.c`).
pub fn has_failed_to_init(lines: &[String]) -> bool {
    let banner = ["*** An error occurred in MPI_Init", "Local abort before MPI_INIT completed"];
    lines.iter().any(|line| banner.iter().any(|part| line.contains(part)))
}

/// How the cause begins where Open MPI did not find its own words for a fatal error.
pub(crate) const WORDLESS: &str = "an MPI error without words";

/// The classes of errors, which are the codes of the aborts (`mpi.h` of Open MPI 1 to 5), from 1 on.
const CLASSES: [&str; 19] = [
    "BUFFER",
    "COUNT",
    "TYPE",
    "TAG",
    "COMM",
    "RANK",
    "REQUEST",
    "ROOT",
    "GROUP",
    "OP",
    "TOPOLOGY",
    "DIMS",
    "ARG",
    "UNKNOWN",
    "TRUNCATE",
    "OTHER",
    "INTERN",
    "IN_STATUS",
    "PENDING",
];

/// A cause that has no words of Open MPI, with the class of the error by the code of the abort.
pub(crate) fn with_class(cause: &str, code: i32) -> Option<String> {
    let rest = cause.strip_prefix(WORDLESS)?;
    let class = CLASSES.get(usize::try_from(code).ok()?.checked_sub(1)?)?;
    Some(format!("MPI_ERR_{class} without words{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_words_has_the_class_of_its_code() {
        let named = with_class("an MPI error without words: /a is missing", 15);
        assert_eq!(named.as_deref(), Some("MPI_ERR_TRUNCATE without words: /a is missing"));
        assert_eq!(with_class("an MPI error without words", 0), None);
        assert_eq!(with_class("an MPI error without words", 77), None);
        assert_eq!(with_class("no mesh", 15), None);
    }

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
