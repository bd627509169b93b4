//! Writes lines that a test can check one by one: `RANK:NUMBER:` and then a filling that depends on both.
//!
//! `lines COUNT LENGTH [--chunk BYTES] [--unterminated] [--stderr] [--fill text|binary|nul] [--progress]`
//!
//! LENGTH counts the newline. `--chunk` writes pieces of so many bytes, whatever the lines. `--unterminated` leaves
//! out the last newline. `--fill binary` is no UTF-8, `--fill nul` is zero bytes. `--progress` ends each line but the
//! last with a carriage return.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use rankrun_tests::lines::{Fill, line};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "lines: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut numbers = Vec::new();
    let (mut chunk, mut fill) = (1 << 16, Fill::Text);
    let (mut unterminated, mut stderr, mut progress) = (false, false, false);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--unterminated" => unterminated = true,
            "--stderr" => stderr = true,
            "--progress" => progress = true,
            "--chunk" => chunk = arguments.next().unwrap_or_default().parse().map_err(io::Error::other)?,
            "--fill" => {
                fill = match arguments.next().as_deref() {
                    Some("binary") => Fill::Binary,
                    Some("nul") => Fill::Nul,
                    _ => Fill::Text,
                }
            }
            number => numbers.push(number.parse::<usize>().map_err(io::Error::other)?),
        }
    }
    let &[count, length] = &numbers[..] else {
        return Err(io::Error::other("usage: lines COUNT LENGTH [OPTIONS]"));
    };
    let rank: usize = env::var("RANKRUN_RANK").unwrap_or_default().parse().unwrap_or(0);
    let mut out: Box<dyn Write> = if stderr { Box::new(io::stderr()) } else { Box::new(unbuffered_stdout()?) };
    let mut waiting = Vec::new();
    for number in 0..count {
        let mut next = line(rank, number, length, fill);
        let last = number + 1 == count;
        if progress && !last {
            next.pop();
            next.push(b'\r');
        }
        if unterminated && last {
            next.pop();
        }
        waiting.extend_from_slice(&next);
        while waiting.len() >= chunk {
            out.write_all(&waiting[..chunk])?;
            waiting.drain(..chunk);
        }
    }
    out.write_all(&waiting)
}

/// Rust's own stdout would collect lines.
fn unbuffered_stdout() -> io::Result<std::fs::File> {
    Ok(std::fs::File::from(rustix::io::dup(rustix::stdio::stdout())?))
}
