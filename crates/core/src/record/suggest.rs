//! Near matches for what was mistyped.

/// The candidate nearest to what was typed, if it is near enough.
///
/// Near is an edit distance (with transpositions) of at most a third of the length of what was typed: nothing is near to a
/// word of one or two letters, since every other such word would be.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = typed.chars().count() / 3;
    if limit == 0 {
        return None;
    }
    candidates
        .into_iter()
        .filter(|candidate| *candidate != typed)
        .filter_map(|candidate| distance(typed, candidate, limit).map(|d| (d, candidate)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The optimal string alignment distance of two words, if it is at most `limit`.
fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substituted = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substituted.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    Some(last[b.len()]).filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_near() {
        assert_eq!(nearest("trian.py", ["test.py", "train.py", "trace"]), Some("train.py"));
        assert_eq!(nearest("pyhton", ["perl", "python", "python3"]), Some("python"));
        assert_eq!(nearest("--gace", ["--grace", "--trace"]), Some("--grace"));
    }

    #[test]
    fn other_words_are_not() {
        assert_eq!(nearest("ab", ["cd", "xyz"]), None);
        assert_eq!(nearest("solver", ["python", "gcc"]), None);
        assert_eq!(nearest("ls", ["ls"]), None, "what was typed is no hint");
        for short in ["", "-", "m", "mx"] {
            assert_eq!(nearest(short, ["R", "mv", "m4"]), None, "{short}");
        }
    }
}
