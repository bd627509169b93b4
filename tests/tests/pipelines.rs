//! A person at a terminal, with a pipeline: what stands behind the pipe can use the terminal as it could without rankrun.

use rankrun_tests::Tier;
use rankrun_tests::screen::Session;

/// A pager: it changes the modes, reads all of its stdin, and waits for a key on the terminal.
const PAGER: &str = r#"import os, sys, termios, tty
terminal = os.open("/dev/tty", os.O_RDWR)
before = termios.tcgetattr(terminal)
tty.setcbreak(terminal)
print("ready", flush=True)
count = len(sys.stdin.readlines())
print(f"{count} lines", flush=True)
key = os.read(terminal, 1).decode()
kept = not termios.tcgetattr(terminal)[3] & (termios.ECHO | termios.ICANON)
termios.tcsetattr(terminal, termios.TCSANOW, before)
print(f"key {key} modes kept {kept}", flush=True)
"#;

#[test]
fn a_pager_behind_the_pipe_has_the_terminal() {
    Tier::in_each(|tier| {
        for ranks in ["-n 1", "-n 2 --tty 0", "-n 2"] {
            let mut session = Session::start(tier);
            std::fs::write(session.running.directory().join("pager.py"), PAGER).expect("the job's directory is ours");
            session.run("cd $RANKRUN_TEST_DIR; mkfifo go");
            // The rank ends when the pager has set its modes.
            session.line(&format!(
                "$R {ranks} sh -c 'test $RANKRUN_RANK = 1 || read -r line < go; seq 500' | python3 pager.py"
            ));
            session.screen.wait_for_row("ready");
            std::fs::write(session.running.directory().join("go"), "\n").expect("a rank reads it");
            let lines = if ranks == "-n 1" { 500 } else { 1000 };
            session.screen.wait_for_row(&format!("{lines} lines"));
            session.screen.press("q");
            session.screen.wait_for_row("key q modes kept True");
            session.wait_for_prompt();
            session.finish();
        }
    });
}

#[test]
fn a_rank_before_the_pipe_gets_the_terminal_when_it_asks_for_it() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        session.run("set -o pipefail");
        session.line("PYTHON_BASIC_REPL=1 $R -n 1 python3 -q -i | cat");
        session.screen.wait_for(">>>");
        session.line("import os; print('terminal %s' % os.isatty(0))");
        session.screen.wait_for("terminal True");
        session.screen.press("\x1a");
        session.wait_for_prompt();
        session.line("fg");
        session.line("print('six times seven is %d' % (6 * 7))");
        session.screen.wait_for("six times seven is 42");
        session.interrupt_until("KeyboardInterrupt");
        session.line("raise SystemExit(7)");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 7");
        session.finish();
    });
}

#[test]
fn keys_reach_a_rank_that_has_not_asked_for_the_terminal() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        session.run("set -o pipefail");
        // Both wait without starting a process: a shell that has one between its vfork and its exec is not stopped while that one is.
        let script = "trap \"echo caught; exit 5\" INT; mkfifo $RANKRUN_TEST_DIR/never; exec 3<>$RANKRUN_TEST_DIR/never; \
                      echo $$ > $RANKRUN_TEST_DIR/0.pid; while :; do read line <&3; done";
        let reader = "trap \"\" INT; echo $$ > $RANKRUN_TEST_DIR/1.pid; exec cat";
        session.line(&format!("$R -n 1 sh -c '{script}' | sh -c '{reader}'"));
        // The shell may start it after the rank runs: ^Z would then be for one of the two.
        session.pid("1.pid");
        session.pid("0.pid");
        let job = session.screen.foreground();
        session.screen.press("\x1a");
        session.wait_for_prompt();
        session.line("fg");
        session.screen.wait("the job in the foreground", |screen| screen.foreground() == job);
        session.screen.press("\x03");
        session.screen.wait_for("caught");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 5");
        session.finish();
    });
}
