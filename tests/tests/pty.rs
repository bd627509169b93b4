//! On a terminal a rank feels as if it had been run directly: size, keys, job control, screen (docs/output.md).

use std::num::NonZero;
use std::time::Duration;

use rankrun_tests::{Ended, Job, Pty, helper, rankrun};

const BOUND: Duration = Duration::from_secs(20);

fn screen(terminal: &Pty) -> String {
    let [rows, columns] = [24, 80].map(|size| NonZero::new(size).expect("not zero"));
    let mut parser = vt100::Parser::new(rows, columns, 0);
    parser.process(&terminal.seen());
    parser.screen().contents()
}

fn finish(running: rankrun_tests::Running, terminal: &Pty) -> Ended {
    let ended = running.finish(BOUND);
    assert_eq!(ended.signal, None, "{}", screen(terminal));
    ended
}

#[test]
fn one_rank_has_the_terminal_itself_with_its_size() {
    let terminal = Pty::open(33, 77);
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && tty";
    let running = Job::new(["-n", "1", "sh", "-c", script]).terminal(terminal.path()).start();
    let ended = finish(running, &terminal);
    let path = terminal.path().display().to_string();
    terminal.wait_for(&path, 1);
    assert_eq!(screen(&terminal), format!("33 77\n{path}"));
    assert_eq!(ended.code, Some(0));
}

#[test]
fn the_interrupt_key_reaches_the_rank_which_decides() {
    let mut terminal = Pty::open(24, 80);
    let script = "trap 'echo; echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.02; done";
    let running = Job::new(["-n", "1", "sh", "-c", script]).terminal(terminal.path()).start();
    terminal.wait_for("ready", 1);
    terminal.press("\x03");
    terminal.wait_for("interrupted", 1);
    assert_eq!(finish(running, &terminal).code, Some(5));
}

#[test]
fn an_interpreter_looks_as_it_does_without_rankrun() {
    let mut screens = Vec::new();
    for (program, arguments) in
        [("python3".into(), &["-q"][..]), (rankrun().into_os_string(), &["-n", "1", "python3", "-q"])]
    {
        let mut terminal = Pty::open(24, 80);
        // The basic prompt: newer ones ask the terminal questions and are drawn by the answers.
        let job = Job::of_program(program, arguments).env("PYTHON_BASIC_REPL", "1").env("TERM", "xterm");
        let running = job.terminal(terminal.path()).start();
        terminal.wait_for(">>> ", 1);
        terminal.press("6 * 7\n");
        terminal.wait_for("42", 1);
        terminal.wait_for(">>> ", 2);
        terminal.press("exit(4)\n");
        let ended = finish(running, &terminal);
        // rankrun adds its report below; what the program showed is above.
        let text = screen(&terminal);
        screens.push(text.split("rankrun:").next().unwrap_or_default().trim_end().to_owned());
        assert_eq!(ended.code, Some(4), "{text}");
    }
    assert_eq!(screens[0], screens[1]);
    assert!(screens[0].contains(">>> 6 * 7\n42\n>>> exit(4)"), "{}", screens[0]);
}

#[test]
fn the_suspend_key_and_fg_work_as_in_any_shell() {
    let mut terminal = Pty::open(24, 80);
    let job = Job::of_program("bash", ["--norc", "--noprofile", "-i"]).env("PS1", "$ ").env("TERM", "dumb");
    let running = job.terminal(terminal.path()).start();
    terminal.wait_for("$ ", 1);
    terminal.press(&format!("{} -n 1 {} --alone\n", rankrun().display(), helper("tree")));
    running.wait_for_ranks(1);
    terminal.press("\x1a");
    terminal.wait_for("Stopped", 1);
    terminal.press("echo shell is $((40 + 2))\n");
    terminal.wait_for("shell is 42", 1);
    terminal.press("fg\n");
    terminal.wait_for("rankrun -n 1", 2);
    terminal.press("\x03");
    terminal.press("echo ended with $?\n");
    terminal.wait_for("ended with 130", 1);
    terminal.press("exit 0\n");
    assert_eq!(finish(running, &terminal).code, Some(0));
}

#[test]
fn a_chosen_rank_of_several_gets_the_terminal_for_a_debugger() {
    let mut terminal = Pty::open(24, 80);
    let script = "if test -t 0; then printf 'rank %s: ' $RANKRUN_RANK; read answer; echo got $answer; fi";
    let running = Job::new(["-n", "4", "--tty", "3", "sh", "-c", script]).terminal(terminal.path()).start();
    terminal.wait_for("rank 3: ", 1);
    terminal.press("continue\n");
    terminal.wait_for("got continue", 1);
    assert_eq!(finish(running, &terminal).code, Some(0));
}

#[test]
fn a_breakpoint_of_a_python_program_stops_the_rank_on_the_terminal_and_no_other() {
    let mut terminal = Pty::open(24, 80);
    let script = "import os; rank = os.environ['RANK']; breakpoint(); print('rank', rank, 'went on')";
    let running = Job::new(["-n", "4", "--tty", "3", "python3", "-c", script]).terminal(terminal.path()).start();
    terminal.wait_for("(Pdb) ", 1);
    terminal.press("p 'rank=' + rank\n");
    terminal.wait_for("rank=3", 1);
    terminal.press("c\n");
    terminal.wait_for("rank 3 went on", 1);
    let ended = finish(running, &terminal);
    assert_eq!(ended.code, Some(0));
    for rank in 0..3 {
        terminal.wait_for(&format!("rank {rank} went on"), 1);
    }
}

#[test]
fn ranks_below_a_terminal_write_to_ptys_unless_told_otherwise() {
    for (stdio, expected) in [("auto", "pty"), ("pty", "pty"), ("pipe", "pipe")] {
        let terminal = Pty::open(24, 80);
        let script = "if test -t 1; then echo pty; else echo pipe; fi";
        let job = Job::new(["-n", "2", "--stdio", stdio, "sh", "-c", script]);
        let running = job.terminal(terminal.path()).start();
        let ended = finish(running, &terminal);
        terminal.wait_for(expected, 2);
        assert_eq!(screen(&terminal), format!("{expected}\n{expected}"), "--stdio {stdio}");
        assert_eq!(ended.code, Some(0));
    }
}

#[test]
fn the_terminals_modes_are_what_they_were() {
    let terminal = Pty::open(24, 80);
    let modes = || {
        let file = std::fs::File::open(terminal.path()).expect("the terminal is open");
        let modes = rustix::termios::tcgetattr(&file).expect("a terminal has modes");
        (modes.input_modes, modes.output_modes, modes.local_modes)
    };
    let before = modes();
    for ranks in ["1", "2"] {
        // A rank that leaves the terminal raw and without echo, and is killed.
        let script = "stty raw -echo 2>/dev/null; kill -KILL $$";
        let running = Job::new(["-n", ranks, "sh", "-c", script]).terminal(terminal.path()).start();
        assert_eq!(finish(running, &terminal).code, Some(137));
        assert_eq!(modes(), before, "{ranks} ranks");
    }
}
