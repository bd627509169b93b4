//! Writes names of hosts as a short list: `node[01-16,20]`.

use super::list::MAX_DIGITS;

/// Writes names as a short list in Slurm's syntax, which [`super::parse_names`] reads back as the same names in the same
/// order.
pub fn fold<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut items: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    // Each turn folds one more dimension, from the right to the left.
    loop {
        let before = items.len();
        items = fold_once(&items);
        if items.len() == before {
            return items.join(",");
        }
    }
}

/// Folds neighbours that differ in one number.
fn fold_once(items: &[String]) -> Vec<String> {
    let mut folded = Vec::new();
    let mut rest = items;
    while let Some((first, _)) = rest.split_first() {
        let group = numbers(first).map(|number| Group::of(number, rest)).reduce(|best, group| {
            // Of equals the last number counts: it is the one that names count by.
            if group.size >= best.size { group } else { best }
        });
        let (item, taken) = match group.filter(|group| group.size > 1) {
            Some(group) => (group.written(), group.size),
            None => (first.clone(), 1),
        };
        folded.push(item);
        rest = &rest[taken..];
    }
    folded
}

/// A number in a name: what is before it, and what is after it.
struct Number<'a> {
    before: &'a str,
    after: &'a str,
}

/// The numbers of a name that can be folded: those before the first brackets. A number that stands after brackets would
/// count faster than they do.
fn numbers(item: &str) -> impl Iterator<Item = Number<'_>> {
    // An address of IPv6 has colons, which mean slots outside of it.
    let end = if item.contains(':') { 0 } else { item.find('[').unwrap_or(item.len()) };
    let bytes = item.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let starts = (0..end).filter(move |at| is_digit(*at) && (*at == 0 || !is_digit(at - 1)));
    let ends = move |start: usize| (start..).find(|at| !is_digit(*at)).unwrap_or(end);
    starts
        .map(move |start| (start, ends(start)))
        .filter(|(start, end)| end - start <= MAX_DIGITS)
        .map(move |(start, end)| Number { before: &item[..start], after: &item[end..] })
}

/// Names that differ in one number only.
struct Group<'a> {
    number: Number<'a>,
    digits: Vec<&'a str>,
    size: usize,
}

impl<'a> Group<'a> {
    /// As many of the first items as differ in this number of the first one only.
    fn of(number: Number<'a>, items: &'a [String]) -> Group<'a> {
        let digits = |item: &'a String| {
            let digits = item.strip_prefix(number.before)?.strip_suffix(number.after)?;
            let is_number =
                (1..=MAX_DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then_some(digits)
        };
        let digits: Vec<&str> = items.iter().map_while(digits).collect();
        Group { size: digits.len(), digits, number }
    }

    fn written(&self) -> String {
        let mut ranges = String::new();
        let mut rest = &self.digits[..];
        while let Some((first, _)) = rest.split_first() {
            let value: u64 = first.parse().unwrap_or(0);
            let width = first.len();
            let follows = |(i, digits): (usize, &&str)| **digits == format!("{:0width$}", value + i as u64);
            let length = rest.iter().enumerate().take_while(|(i, digits)| follows((*i, digits))).count();
            if !ranges.is_empty() {
                ranges.push(',');
            }
            ranges.push_str(first);
            if length > 1 {
                ranges.push('-');
                ranges.push_str(rest[length - 1]);
            }
            rest = &rest[length.max(1)..];
        }
        format!("{}[{ranges}]{}", self.number.before, self.number.after)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hosts::{parse_list, parse_names};

    #[test]
    fn neighbours_are_folded() {
        for (names, expected) in [
            ("", ""),
            ("a", "a"),
            ("a b", "a,b"),
            ("node01 node02 node03 node20", "node[01-03,20]"),
            ("n8 n9 n10 n11", "n[8-11]"),
            ("n08 n09 n10", "n[08-10]"),
            ("n1 n02 n3", "n[1,02,3]"),
            ("n1-ib n2-ib n3-ib m", "n[1-3]-ib,m"),
            ("r1n1 r1n2 r2n1 r2n2", "r[1-2]n[1-2]"),
            ("r1n1 r1n2 r2n1", "r1n[1-2],r2n1"),
            ("r1n1 r2n1 r3n1", "r[1-3]n1"),
            ("n3 n2 n1", "n[3,2,1]"),
            ("n1 n1", "n[1,1]"),
            ("::1 ::2 n1", "::1,::2,n1"),
            ("10.0.0.1 10.0.0.2 10.0.0.3", "10.0.0.[1-3]"),
        ] {
            assert_eq!(fold(names.split_whitespace()), expected, "{names}");
        }
    }

    /// A list of Slurm's kind, of a few forms that fold well or badly.
    fn written() -> impl Strategy<Value = String> {
        let number = (0u32..120, 1usize..4).prop_map(|(number, width)| format!("{number:0width$}"));
        let range = (0u32..40, 0u32..12, 1usize..4)
            .prop_map(|(first, more, width)| format!("{first:0width$}-{:0width$}", first + more));
        let ranges = proptest::collection::vec(prop_oneof![number, range], 1..4).prop_map(|ranges| ranges.join(","));
        let piece =
            prop_oneof!["[a-z][a-z0-9.-]{0,3}".prop_map(|text| text), ranges.prop_map(|ranges| format!("[{ranges}]")),];
        let name = proptest::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat());
        proptest::collection::vec(name, 1..4).prop_map(|names| names.join(","))
    }

    proptest! {
        #[test]
        fn what_is_folded_is_read_back_the_same(list in written()) {
            let names = parse_names(&list).expect("a good list");
            let folded = fold(&names);
            prop_assert_eq!(parse_names(&folded).expect("a good list"), names, "{} from {}", folded, list);
        }

        #[test]
        fn any_names_are_read_back_the_same(names in proptest::collection::vec("[a-c0-2]{1,4}", 1..20)) {
            let folded = fold(&names);
            prop_assert!(folded.len() <= names.join(",").len() + 2 * names.len());
            prop_assert_eq!(parse_names(&folded).expect("a good list"), names, "{}", folded);
        }

        #[test]
        fn no_text_is_a_panic(text in "[a-b0-9\\[\\],:@*%. -]{0,24}") {
            if let Ok(hosts) = parse_list(&text) {
                let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
                let folded = fold(&names);
                prop_assert_eq!(parse_names(&folded).expect("a good list"), names, "{}", folded);
            }
        }
    }
}
