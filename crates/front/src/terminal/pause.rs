//! A stop by job control, and what the terminal needs of our text.

/// A stop that is being carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    /// The signal to stop by.
    pub(crate) signal: i32,
    pub(crate) whose: Whose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// A key: the kernel has sent the signal to the whole foreground group.
    Key,
    /// Another process sent it, and will also continue us.
    Asked,
    /// The rank that has the terminal was stopped. Our process group was in the background, and did not get the signal.
    Rank,
}

/// Puts a `\r` before each `\n` that has none.
pub(crate) fn with_returns(text: &[u8]) -> Vec<u8> {
    let mut suited = Vec::with_capacity(text.len() + 16);
    for &byte in text {
        if byte == b'\n' && suited.last() != Some(&b'\r') {
            suited.push(b'\r');
        }
        suited.push(byte);
    }
    suited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newline_gets_one_return() {
        assert_eq!(with_returns(b"a\nb\r\n\n"), b"a\r\nb\r\n\r\n");
        assert_eq!(with_returns(&with_returns(b"a\n")), b"a\r\n");
    }
}
