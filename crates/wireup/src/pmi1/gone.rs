//! The value of `PMI_dead_processes`: the numbers of the ranks that are gone, as MPICH's `MPIX_Comm_get_failed` and Hydra have it.

use std::fmt::Write as _;

use rankrun_core::Rank;

use super::VALLEN_MAX;

/// The numbers in the order in which the ranks were lost: MPICH's acknowledgements count on it. Where they do not fit, ranges in ascending
/// order, and of these as many as fit.
pub(super) fn list(gone: &[Rank]) -> String {
    let numbers: Vec<String> = gone.iter().map(|rank| rank.number().to_string()).collect();
    let text = numbers.join(",");
    if text.len() <= VALLEN_MAX { text } else { ranges(gone) }
}

fn ranges(gone: &[Rank]) -> String {
    let mut numbers: Vec<u32> = gone.iter().map(|rank| rank.number()).collect();
    numbers.sort_unstable();
    let mut text = String::new();
    for range in numbers.chunk_by(|one, next| next - one <= 1) {
        let (first, last) = (range[0], range[range.len() - 1]);
        let before = text.len();
        let comma = if text.is_empty() { "" } else { "," };
        // Writing into a string cannot fail.
        let _ = match first == last {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
        if text.len() > VALLEN_MAX {
            text.truncate(before);
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rankrun_core::GroupId;

    use super::*;

    fn ranks(numbers: impl IntoIterator<Item = u32>) -> Vec<Rank> {
        numbers.into_iter().map(|number| Rank::of(GroupId::default(), number)).collect()
    }

    #[test]
    fn the_list_keeps_the_order_as_long_as_it_fits() {
        assert_eq!(list(&ranks([5, 1, 3])), "5,1,3");
        assert_eq!(list(&ranks((0..1000).rev())), "0-999");
        let odd = list(&ranks((0..2000).filter(|number| number % 2 == 1)));
        assert!(odd.len() <= VALLEN_MAX && odd.starts_with("1,3,5,") && !odd.ends_with(','), "{odd}");
    }
}
