//! `MPI_Comm_spawn` and `MPI_Comm_spawn_multiple`: a request of several lines.
//!
//! It has a block for each command, from `mcmd=spawn` to `endcmd`; the last block is the one whose `spawnssofar` is `totspawns`. A line is
//! `key=value`, and the value is sent as it is (`pmi_wire.c`, `PMIU_cmd_output_v1_mcmd`): an argument that has newlines is several lines,
//! of which all but the first have no key of the request. Clients up to MPICH 4.1 send the arguments before their number. The keys and
//! values for the store of the new group come with the first block, from older clients with each.
//!
//! A request that cannot be served is read to its end, and refused: its rank gets an error of `MPI_Comm_spawn`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use rankrun_core::spawning::{SpawnAnswer, SpawnApp, SpawnRequest};

use super::request::number;
use super::{KEYLEN_MAX, MAX_REPLY, MAX_SPAWN, VALLEN_MAX};

/// A request of several lines that has begun (`mcmd=`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MultiLine {
    pub(super) name: Vec<u8>,
    block: Block,
    done: SpawnRequest,
    /// Bytes of all lines.
    bytes: usize,
    fault: Option<&'static str>,
    /// The key of the last line, whose value may go on.
    last: Option<Field>,
}

/// What one block has told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Block {
    total: Option<i64>,
    so_far: Option<i64>,
    processes: Option<i64>,
    texts: BTreeMap<Field, Vec<u8>>,
    arguments: Option<i64>,
}

/// A value that may be any text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Field {
    Program,
    Argument(u32),
    PreputKey(u32),
    PreputValue(u32),
    InfoKey(u32),
    InfoValue(u32),
}

/// The end of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum BlockEnd {
    /// Another one follows.
    More,
    Whole(SpawnRequest),
    Refused(&'static str),
}

impl Field {
    fn of(key: &[u8]) -> Option<Field> {
        if key == b"execname" {
            return Some(Field::Program);
        }
        let indexed = |begin: &[u8]| u32::try_from(number(key.strip_prefix(begin)?)?).ok();
        indexed(b"arg")
            .map(Field::Argument)
            .or_else(|| indexed(b"preput_key_").map(Field::PreputKey))
            .or_else(|| indexed(b"preput_val_").map(Field::PreputValue))
            .or_else(|| indexed(b"info_key_").map(Field::InfoKey))
            .or_else(|| indexed(b"info_val_").map(Field::InfoValue))
    }
}

impl MultiLine {
    pub(super) fn new(name: &[u8]) -> MultiLine {
        MultiLine {
            name: name.to_vec(),
            block: Block::default(),
            done: SpawnRequest::default(),
            bytes: 0,
            fault: None,
            last: None,
        }
    }

    /// The bytes of memory that it takes, without the overhead of each value.
    pub(super) fn held(&self) -> usize {
        self.bytes
    }

    /// Takes a line other than `endcmd`.
    pub(super) fn line(&mut self, line: &[u8]) {
        self.bytes += line.len() + LINE_OVERHEAD;
        if self.bytes > MAX_SPAWN {
            self.give_up("the_request_is_too_long");
        }
        let (key, value) = line.split_at(line.iter().position(|byte| *byte == b'=').unwrap_or(line.len()));
        let value = value.get(1..);
        let count = || value.and_then(number);
        match key {
            b"nprocs" if value.is_some() => self.block.processes = count(),
            b"totspawns" if value.is_some() => self.block.total = count(),
            b"spawnssofar" if value.is_some() => self.block.so_far = count(),
            b"argcnt" if value.is_some() => self.block.arguments = count(),
            b"preput_num" | b"info_num" if value.is_some() => {}
            _ if self.fault.is_some() => {}
            _ => match (Field::of(key).zip(value), self.last) {
                (Some((field, value)), _) => {
                    self.block.texts.insert(field, value.to_vec());
                    self.last = Some(field);
                    return;
                }
                // It belongs to the value before.
                (None, Some(last)) => {
                    let text = self.block.texts.entry(last).or_default();
                    text.push(b'\n');
                    text.extend_from_slice(line);
                    return;
                }
                (None, None) => {}
            },
        }
        self.last = None;
    }

    /// Frees what it has, and refuses the request when it is whole.
    fn give_up(&mut self, fault: &'static str) {
        self.fault.get_or_insert(fault);
        self.done = SpawnRequest::default();
        self.block.texts = BTreeMap::new();
        self.last = None;
    }

    /// `endcmd` has come.
    pub(super) fn end_block(&mut self) -> BlockEnd {
        let block = std::mem::take(&mut self.block);
        self.last = None;
        let is_last = block.so_far.unwrap_or(1) >= block.total.unwrap_or(1);
        if self.fault.is_none()
            && let Err(fault) = self.take(block)
        {
            self.give_up(fault);
        }
        match (is_last, self.fault) {
            (false, _) => BlockEnd::More,
            (true, Some(fault)) => BlockEnd::Refused(fault),
            (true, None) => BlockEnd::Whole(std::mem::take(&mut self.done)),
        }
    }

    fn take(&mut self, block: Block) -> Result<(), &'static str> {
        let mut command = Vec::new();
        let (mut preput, mut info) = (BTreeMap::new(), BTreeMap::new());
        for (field, text) in block.texts {
            if text.contains(&0) {
                return Err("a_value_has_a_nul_byte");
            }
            match field {
                Field::Program | Field::Argument(_) => command.push((field, OsString::from_vec(text))),
                Field::PreputKey(at) => preput.entry(at).or_insert((None, None)).0 = Some(text),
                Field::PreputValue(at) => preput.entry(at).or_insert((None, None)).1 = Some(text),
                Field::InfoKey(at) => info.entry(at).or_insert((None, None)).0 = Some(text),
                Field::InfoValue(at) => info.entry(at).or_insert((None, None)).1 = Some(text),
            }
        }
        let is_program = command.first().is_some_and(|(field, word)| *field == Field::Program && !word.is_empty());
        if !is_program {
            return Err("no_program_is_named");
        }
        let arguments = command.len() as i64 - 1;
        if block.arguments.is_some_and(|wanted| wanted != arguments) {
            return Err("an_argument_is_missing");
        }
        let size = block.processes.unwrap_or(1);
        let size = u32::try_from(size).ok().filter(|size| (1..=MOST_RANKS).contains(size));
        let size =
            size.filter(|size| self.done.size() + size <= MOST_RANKS).ok_or("so_many_ranks_cannot_be_started")?;
        let preput = pairs(preput)?;
        let fits = |(key, value): &(String, String)| {
            (1..=KEYLEN_MAX).contains(&key.len()) && value.len() <= VALLEN_MAX && !value.contains('\n')
        };
        if !preput.iter().all(fits) {
            return Err("a_value_for_the_new_group_cannot_be_stored");
        }
        if self.done.preput.is_empty() {
            self.done.preput = preput;
        }
        let command = command.into_iter().map(|(_, word)| word).collect();
        self.done.apps.push(SpawnApp { command, size, env: Vec::new(), info: pairs(info)? });
        Ok(())
    }
}

/// A key and its value, as far as they have come.
type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Keys with their values, in the order of their numbers.
fn pairs(found: BTreeMap<u32, Pair>) -> Result<Vec<(String, String)>, &'static str> {
    let text =
        |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap_or_default()).map_err(|_| "a_value_is_not_utf-8");
    found.into_values().map(|(key, value)| Ok((text(key)?, text(value)?))).collect()
}

/// The reply to a rank that has asked for so many others.
pub(super) fn reply(size: u32, answer: &SpawnAnswer) -> Bytes {
    match answer {
        SpawnAnswer::Started(_) => {
            let codes = vec!["0"; size as usize].join(",");
            let text = format!("cmd=spawn_result rc=0 errcodes={codes}\n");
            // Without codes clients take it that all are 0.
            let text = if text.len() < MAX_REPLY { text } else { "cmd=spawn_result rc=0\n".to_owned() };
            Bytes::from(text)
        }
        SpawnAnswer::Refused(_) => refusal("the_ranks_were_not_started"),
    }
}

/// The reply to a rank whose request cannot be served. It is no success with error codes: with `MPI_ERRCODES_IGNORE` MPICH would wait for
/// the group for ever (`ch4_spawn.c`).
pub(super) fn refusal(why: &str) -> Bytes {
    Bytes::from(format!("cmd=spawn_result rc=1 msg={why}\n"))
}

/// Memory of a value besides its bytes.
const LINE_OVERHEAD: usize = 64;
/// More than any machine has: a bound for what one request can ask for.
const MOST_RANKS: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<BlockEnd> {
        let mut request = MultiLine::new(b"spawn");
        let mut ends = Vec::new();
        for line in text.lines() {
            match line {
                "endcmd" => ends.push(request.end_block()),
                "mcmd=spawn" => {}
                line => request.line(line.as_bytes()),
            }
        }
        ends
    }

    fn only(text: &str) -> SpawnRequest {
        match &read(text)[..] {
            [BlockEnd::Whole(request)] => request.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_block_is_a_command_with_its_arguments_its_infos_and_the_first_values_of_the_store() {
        let request = only(
            "nprocs=2\nexecname=/bin/prog\ntotspawns=1\nspawnssofar=1\nargcnt=3\narg1=a b=c\narg2=\narg3=endcmd=\n\
             preput_num=1\npreput_key_0=PARENT_ROOT_PORT_NAME\npreput_val_0=tag#0$x$\n\
             info_num=2\ninfo_key_0=wdir\ninfo_val_0=/tmp\ninfo_key_1=host\ninfo_val_1=a,b\nendcmd",
        );
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(request.preput, [pair("PARENT_ROOT_PORT_NAME", "tag#0$x$")]);
        let [app] = &request.apps[..] else { panic!("{request:?}") };
        assert_eq!(app.command, ["/bin/prog", "a b=c", "", "endcmd="].map(OsString::from));
        assert_eq!((app.size, &app.info[..]), (2, &[pair("wdir", "/tmp"), pair("host", "a,b")][..]));
    }

    /// MPICH up to 4.1 (`simple_pmi.c`).
    #[test]
    fn arguments_may_come_before_their_number_and_there_may_be_more_than_nine() {
        let arguments: String = (1..=11).map(|at| format!("arg{at}=v{at}\n")).collect();
        let request = only(&format!(
            "nprocs=1\nexecname=prog\ntotspawns=1\nspawnssofar=1\n{arguments}argcnt=11\npreput_num=0\ninfo_num=0\nendcmd"
        ));
        let words = (1..=11).map(|at| format!("v{at}").into());
        assert_eq!(request.apps[0].command[1..], words.collect::<Vec<OsString>>());
    }

    #[test]
    fn an_argument_may_have_newlines() {
        let script = "import sys\n\nx=1\nif x:\n    print(x)";
        let request = only(&format!("nprocs=1\nexecname=python\nargcnt=2\narg1=-c\narg2={script}\ninfo_num=0\nendcmd"));
        assert_eq!(request.apps[0].command, ["python", "-c", script].map(OsString::from));
    }

    #[test]
    fn several_blocks_are_one_request_with_the_first_values_of_the_store() {
        let block = |so_far: u32, preput: &str| {
            format!(
                "mcmd=spawn\nnprocs={so_far}\nexecname=p{so_far}\ntotspawns=2\nspawnssofar={so_far}\n{preput}endcmd\n"
            )
        };
        let preput = "preput_num=1\npreput_key_0=k\npreput_val_0=v\n";
        for second in ["", preput] {
            let blocks = read(&(block(1, preput) + &block(2, second)));
            let [BlockEnd::More, BlockEnd::Whole(request)] = &blocks[..] else { panic!("{blocks:?}") };
            let sizes: Vec<u32> = request.apps.iter().map(|app| app.size).collect();
            assert_eq!((request.size(), sizes, request.preput.len()), (3, vec![1, 2], 1));
        }
    }

    #[test]
    fn what_cannot_be_served_is_read_to_its_end_and_refused() {
        let long = format!("execname=p\narg1={}\n", "x".repeat(MAX_SPAWN));
        for (block, why) in [
            ("nprocs=1\n", "no_program_is_named"),
            ("execname=\n", "no_program_is_named"),
            ("arg1=x\n", "no_program_is_named"),
            ("execname=p\nargcnt=2\narg1=x\n", "an_argument_is_missing"),
            ("execname=p\nnprocs=0\n", "so_many_ranks_cannot_be_started"),
            ("execname=p\nnprocs=-1\n", "so_many_ranks_cannot_be_started"),
            ("execname=p\nnprocs=99999999999\n", "so_many_ranks_cannot_be_started"),
            ("execname=a\0b\n", "a_value_has_a_nul_byte"),
            ("execname=p\npreput_key_0=\npreput_val_0=v\n", "a_value_for_the_new_group_cannot_be_stored"),
            (&long, "the_request_is_too_long"),
        ] {
            let first = format!("{block}totspawns=2\nspawnssofar=1\nendcmd\n");
            let second = "execname=q\ntotspawns=2\nspawnssofar=2\nendcmd\n";
            assert_eq!(read(&(first + second)), [BlockEnd::More, BlockEnd::Refused(why)], "{why}");
        }
    }

    #[test]
    fn the_reply_has_a_code_for_each_rank_where_they_fit() {
        let started = |size| reply(size, &SpawnAnswer::Started(Default::default()));
        assert_eq!(started(3), "cmd=spawn_result rc=0 errcodes=0,0,0\n");
        assert_eq!(started(1000), "cmd=spawn_result rc=0\n");
        assert!((1..600).all(|size| started(size).len() < MAX_REPLY));
        let refused = reply(3, &SpawnAnswer::Refused("no such host".to_owned()));
        assert_eq!(refused, "cmd=spawn_result rc=1 msg=the_ranks_were_not_started\n");
    }
}
