//! A rank that goes wrong in the way that its argument names: `rankrun -n 2 target/debug/examples/panics main`.

use std::env;
use std::thread;

use rankrun_worker::OnPanic;

/// Stands for what a program holds of MPI: dropping it waits for the other ranks.
struct Universe;

impl Drop for Universe {
    fn drop(&mut self) {
        if env::var_os("STUCK").is_some() {
            loop {
                thread::park();
            }
        }
    }
}

fn main() {
    let how = env::args().nth(1).unwrap_or_default();
    rankrun_worker::install(if how == "abort-on-panic" { OnPanic::Abort } else { OnPanic::Tell });
    let _universe = Universe;
    rankrun_worker::note("the program starts");
    match how.as_str() {
        "main" | "abort-on-panic" => panic!("failure!"),
        "thread" => {
            let thread = thread::Builder::new().name("helper".to_owned()).spawn(|| panic!("failure!"));
            assert!(thread.expect("a thread can be started").join().is_err());
        }
        "abort" => rankrun_worker::abort(3, "no good"),
        "notes" => (0..10_000).for_each(|i| rankrun_worker::note(&format!("note {i} {}", "x".repeat(200)))),
        _ => {}
    }
}
