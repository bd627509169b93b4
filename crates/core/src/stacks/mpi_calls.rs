//! The functions of MPI: their names in several languages, and what each waits for.

use super::place::Wait;

/// Collectives of MPI, without `MPI_` and without the `I` of those that do not block.
const COLLECTIVES: [&str; 40] = [
    "Allgather",
    "Allgatherv",
    "Allreduce",
    "Alltoall",
    "Alltoallv",
    "Alltoallw",
    "Barrier",
    "Bcast",
    "Exscan",
    "Gather",
    "Gatherv",
    "Reduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
    "Scatter",
    "Scatterv",
    "Neighbor_allgather",
    "Neighbor_alltoall",
    "Init",
    "Init_thread",
    "Session_init",
    "Comm_create",
    "Comm_create_group",
    "Comm_dup",
    "Comm_split",
    "Comm_split_type",
    "Comm_free",
    "Comm_disconnect",
    "Comm_accept",
    "Comm_connect",
    "Comm_spawn",
    "Intercomm_create",
    "Intercomm_merge",
    "Cart_create",
    "Win_create",
    "Win_allocate",
    "Win_fence",
    "Win_free",
    "File_open",
];
/// Of windows: these wait for one rank or several. `MPI_Win_lock_all`, `MPI_Win_flush_local` as well.
const SYNCHRONIZATIONS: [&str; 7] = ["lock", "unlock", "flush", "start", "complete", "wait", "test"];

/// The name of an MPI function, however it was called: `PMPI_Recv`, `mpi_recv_` of Fortran, `MPI_Recv_c`.
pub(super) fn mpi(function: &str) -> Option<String> {
    let name = function.split('@').next().unwrap_or(function);
    let name = name.trim_start_matches("__GI_");
    // Open MPI's MPI_Finalize and MPI_Init end with a jump to these, and leave no frame.
    match name {
        "ompi_mpi_finalize" | "ompi_mpi_instance_finalize" => return Some("MPI_Finalize".to_owned()),
        "ompi_mpi_init" | "ompi_mpi_instance_init" => return Some("MPI_Init".to_owned()),
        _ => {}
    }
    if let Some(rest) = name.strip_prefix("PMPI_").or_else(|| name.strip_prefix("MPI_")) {
        // Of the names that Fortran's functions have, one is MPI_BARRIER.
        if rest.len() > 1 && rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit())
        {
            let (first, rest) = rest.trim_end_matches('_').split_at_checked(1)?;
            return Some(format!("MPI_{first}{}", rest.to_ascii_lowercase()));
        }
        let is_one = rest.starts_with(|c: char| c.is_ascii_uppercase()) && !rest.contains("::");
        return is_one.then(|| format!("MPI_{}", rest.trim_end_matches("_c")));
    }
    let lower = name.to_ascii_lowercase();
    let fortran = lower.strip_prefix("pmpi_").or_else(|| lower.strip_prefix("mpi_"))?;
    let is_fortran =
        name.ends_with('_') && (name == lower || name.trim_end_matches('_').chars().all(|c| !c.is_lowercase()));
    let rest = fortran.trim_end_matches('_').trim_end_matches("_f08").trim_end_matches("_f");
    let mut letters = rest.chars();
    let first = letters.next().filter(|_| is_fortran)?;
    Some(format!("MPI_{}{}", first.to_ascii_uppercase(), letters.as_str()))
}

pub(super) fn of_mpi(name: &str) -> Wait {
    let call = name.trim_start_matches("MPI_");
    let blocking = match call.strip_prefix('I').map(str::chars).and_then(|mut rest| rest.next()) {
        // MPI_Ibarrier; but not MPI_Init.
        Some(next) if next.is_ascii_lowercase() && !call.starts_with("Init") && !call.starts_with("Inter") => {
            let mut letters = call[1..].chars();
            letters
                .next()
                .map_or_else(String::new, |first| format!("{}{}", first.to_ascii_uppercase(), letters.as_str()))
        }
        _ => call.to_owned(),
    };
    if call == "Finalize" {
        Wait::Finalize
    } else if COLLECTIVES.contains(&blocking.as_str()) || call.starts_with("File_") && call.ends_with("_all") {
        Wait::Collective(name.to_owned())
    } else if blocking.to_ascii_lowercase().ends_with("send") {
        Wait::Taker(name.to_owned())
    } else if ["Recv", "Irecv", "Mrecv", "Probe", "Mprobe", "Sendrecv", "Sendrecv_replace"].contains(&call)
        || call.starts_with("Wait")
        || call.starts_with("Test")
        || call.strip_prefix("Win_").is_some_and(|call| SYNCHRONIZATIONS.iter().any(|known| call.starts_with(known)))
    {
        Wait::Message(name.to_owned())
    } else {
        Wait::Unknown
    }
}

/// The function of MPI that a method of mpi4py is: `Comm.Recv` is `MPI_Recv`, `Win.Lock` is `MPI_Win_lock`.
pub(super) fn of_class(method: &str) -> String {
    match method.split_once('.') {
        Some(("Win", call)) => format!("MPI_Win_{}", call.to_ascii_lowercase()),
        Some((_, call)) => format!("MPI_{call}"),
        None => format!("MPI_{method}"),
    }
}

/// What a method of mpi4py waits for that begins with a small letter, and so calls several functions of MPI: `Comm.allreduce`.
/// [`Wait::Unknown`] for the others, which are functions of MPI with another name.
pub(super) fn of_method(method: &str) -> Wait {
    let call = method.rsplit('.').next().unwrap_or(method);
    let mut letters = call.chars();
    let Some(first) = letters.next().filter(char::is_ascii_lowercase) else { return Wait::Unknown };
    match of_mpi(&format!("MPI_{}{}", first.to_ascii_uppercase(), letters.as_str())) {
        Wait::Collective(_) => Wait::Collective(method.to_owned()),
        Wait::Message(_) => Wait::Message(method.to_owned()),
        Wait::Taker(_) => Wait::Taker(method.to_owned()),
        _ => Wait::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_underscores_is_no_function_of_mpi() {
        for name in ["MPI___", "PMPI___", "MPI__", "MPI_"] {
            assert_eq!(mpi(name), None, "{name}");
        }
        assert_eq!(mpi("MPI_BARRIER_").as_deref(), Some("MPI_Barrier"));
    }
}
