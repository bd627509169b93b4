//! The mappings of a process: `/proc/PID/maps`.

/// A mapping of a file or of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_executable: bool,
    pub(crate) offset: u64,
    /// Device and inode, as they are written there.
    pub(crate) file: String,
    /// The path in the mount namespace of the process, or a name in brackets, or nothing.
    pub(crate) path: String,
}

/// All mappings, by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mappings(pub(crate) Vec<Mapping>);

impl Mappings {
    pub(crate) fn parse(text: &str) -> Mappings {
        Mappings(text.lines().filter_map(parse_line).collect())
    }

    /// The mapping at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Mapping> {
        let next = self.0.partition_point(|mapping| mapping.start <= address);
        self.0.get(next.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }

    /// The executable mapping at an address.
    pub(crate) fn code_at(&self, address: u64) -> Option<&Mapping> {
        self.at(address).filter(|mapping| mapping.is_executable)
    }
}

/// `7f00-7f10 r-xp 00001000 fe:00 1234    /usr/lib/x.so`; the path may contain spaces.
fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut next = || {
        rest = rest.trim_start_matches(' ');
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    let (start, end) = next().split_once('-')?;
    let rights = next();
    let offset = next();
    let file = format!("{} {}", next(), next());
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        is_executable: rights.as_bytes().get(2) == Some(&b'x'),
        offset: hex(offset)?,
        file,
        path: rest.trim_start_matches(' ').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_a_path_are_read() {
        let text = "55a0-55b0 r--p 00000000 fe:00 77 /opt/my app/x (deleted)\n55b0-55c0 r-xp 00001000 fe:00 77 /opt/my app/x\n7fff-8fff rw-p 00000000 00:00 0 \nffff-10000 r-xp 00000000 00:00 0                  [vdso]\n";
        let maps = Mappings::parse(text);
        assert_eq!(maps.0.len(), 4);
        assert_eq!(maps.0[0].path, "/opt/my app/x (deleted)");
        assert_eq!(maps.0[2].path, "");
        assert_eq!(maps.0[3].path, "[vdso]");
        assert_eq!(maps.code_at(0x55b5).map(|mapping| mapping.offset), Some(0x1000));
        assert_eq!(maps.code_at(0x55a5), None);
        assert_eq!(maps.at(0x55c0), None);
    }
}
