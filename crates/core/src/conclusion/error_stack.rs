//! The error stacks of MPICH and Intel MPI.

/// Ends the line before an error stack.
pub(crate) const STACK_FOLLOWS: &str = ", error stack:";

/// What a line of an error stack says: `internal_Send(78).: Invalid rank has value 7 but must be nonnegative and less than 4`;
/// that of Intel MPI may be `(unknown)(): Message truncated`.
pub(crate) fn reason(line: &str) -> Option<&str> {
    let (function, reason) = line.split_once(':')?;
    let (_, number) = function.trim_end_matches('.').strip_suffix(')')?.rsplit_once('(')?;
    (number.is_empty() || number.parse::<u32>().is_ok()).then_some(reason.trim())
}

/// The line before an error stack, with the last reason that the stack has.
pub(crate) fn with_reason(headline: &str, stack: &[&str]) -> String {
    let headline = headline.trim_end_matches(STACK_FOLLOWS);
    let (call, class) = headline.rsplit_once(": ").unwrap_or(("", headline));
    match stack.iter().rev().filter_map(|line| reason(line)).find(|reason| !reason.is_empty()) {
        Some(reason) if reason.starts_with(class) && call.is_empty() => reason.to_owned(),
        Some(reason) if reason.starts_with(class) => format!("{call}: {reason}"),
        Some(reason) => format!("{headline} ({reason})"),
        None => headline.to_owned(),
    }
}

/// The message of an exception that mpi4py made of an error stack, on one line.
pub(crate) fn reason_of_stack(message: &str) -> Option<String> {
    let (headline, stack) = message.split_once('\n').unwrap_or((message, ""));
    headline.ends_with(STACK_FOLLOWS).then(|| with_reason(headline, &stack.lines().collect::<Vec<_>>()))
}
