//! ^C on a terminal that is lent to a rank: what handles it goes on, and what it ends was interrupted and has not failed
//! (docs/signals.md).

use std::path::Path;
use std::time::Duration;

use rankrun_core::gang::SECOND_INTERRUPT;
use rankrun_tests::screen::Session;
use rankrun_tests::{Environment, Job, Tier, monotonic, rankrun};

fn program() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/interrupts/rank.py").display().to_string()
}

/// The wide screen shows our lines whole.
fn session(tier: Tier) -> Session {
    let session = Session::start(tier);
    session.screen.resize(50, 160);
    session
}

/// Runs a command, presses ^C when rank 0 is up, and asserts what the report says of it and the code.
fn interrupt(session: &mut Session, command: &str, ended: &str) {
    session.run("clear");
    session.line(command);
    session.screen.wait_for_row("rank 0 is up");
    session.screen.press("\x03");
    session.wait_for_prompt();
    let text = session.screen.text();
    let headline = format!("rankrun: interrupted: rank 0, which has the terminal, {ended}  (after ");
    assert!(text.lines().any(|row| row.starts_with(&headline)), "{command}: no {headline:?}:\n{text}");
    assert!(!text.contains(" failed") && !text.contains("where "), "{command}:\n{text}");
    session.run("clear; echo code $?");
    session.screen.wait_for_row("code 0");
}

#[test]
fn a_rank_that_ends_by_the_interrupt_key_was_interrupted_and_has_not_failed() {
    for tier in Tier::sampled() {
        let mut session = session(tier);
        let python = format!("python3 {}", program());
        let table = [
            (format!("$R -n 1 {python}"), "ended by KeyboardInterrupt"),
            (format!("$R -n 3 --tty 0 {python}"), "ended by KeyboardInterrupt"),
            (format!("$R -n 2 --tty 0 sh -c '{python}; exit $?'"), "ended by SIGINT"),
            ("$R -n 1 sh -c 'echo rank 0 is up; exec sleep 600'".to_owned(), "ended by SIGINT"),
            (
                "$R -n 1 sh -c 'trap \"exit 130\" INT; echo rank 0 is up; while :; do sleep 0.02; done'".to_owned(),
                "exited with code 130",
            ),
        ];
        for (command, ended) in table {
            interrupt(&mut session, &command, ended);
        }
        session.finish();
    }
}

/// Python raises `KeyboardInterrupt`, and `MPI_Finalize` would wait for the others.
#[test]
fn an_interrupted_rank_of_mpi_ends_its_job() {
    for name in ["mpich", "impi-rt"] {
        let Some(environment) = Environment::find(name) else { continue };
        let mut session = session(Tier::available()[0]);
        let command = format!("$R -n 2 --tty 0 {} {} mpi", environment.program("python"), program());
        interrupt(&mut session, &command, "ended by KeyboardInterrupt");
        session.finish();
    }
}

/// As without rankrun: a command that dies by SIGINT ends the loop around it, and one that exits with 130 does not.
#[test]
fn a_loop_ends_with_a_rank_that_the_key_killed_and_goes_on_after_one_that_exits() {
    let mut session = session(Tier::available()[0]);
    session.line(&format!("for turn in 1 2; do echo turn $turn; $R -n 1 python3 {}; done", program()));
    session.screen.wait_for_row("rank 0 is up");
    session.screen.press("\x03");
    session.wait_for_prompt();
    session.run("echo code $?");
    session.screen.wait_for_row("code 130");
    assert!(!session.screen.rows().iter().any(|row| row == "turn 2"), "{}", session.screen.text());
    let script = "trap \"exit 130\" INT; echo up; while :; do sleep 0.02; done";
    session.line(&format!("clear; for turn in 1 2; do $R -n 1 sh -c '{script}'; done"));
    for turns in 1..=2 {
        session
            .screen
            .wait("a rank that is up", |screen| screen.rows().iter().filter(|row| *row == "up").count() == turns);
        session.screen.press("\x03");
    }
    session.wait_for_prompt();
    session.finish();
}

#[test]
fn a_second_interrupt_kills_what_the_first_left() {
    for tier in Tier::sampled() {
        let mut session = session(tier);
        let stubborn = "trap \"\" INT TERM; echo up; while :; do sleep 1; done";
        session.line(&format!("$R -n 1 --tty 0 python3 {} : -n 1 sh -c '{stubborn}'", program()));
        session.screen.wait_for_row("rank 0 is up");
        session.screen.wait_for_row("up");
        session.screen.press("\x03");
        session
            .screen
            .wait_for("stopping 1 rank (SIGINT, then SIGTERM after 2 s, SIGKILL after 25 s); ^C again kills now");
        rankrun_tests::pause(SECOND_INTERRUPT + Duration::from_millis(100));
        let pressed = monotonic();
        session.screen.press("\x03");
        session.wait_for_prompt();
        assert!(monotonic() - pressed < Duration::from_secs(10), "not the grace of 25 s");
        session.run("echo code $?");
        session.screen.wait_for_row("code 130");
        session.finish();
    }
}

#[test]
fn a_prompt_takes_the_key_and_the_other_ranks_do_not_notice() {
    for tier in Tier::sampled() {
        let mut session = session(tier);
        let other = "trap \"echo noticed\" INT; while test ! -e $RANKRUN_TEST_DIR/done; do sleep 0.02; done";
        session.line(&format!("PYTHON_BASIC_REPL=1 $R -n 1 --tty 0 python3 -i {} : -n 1 sh -c '{other}'", program()));
        session.screen.wait_for_row("rank 0 is up");
        // First in the program, then at the prompt.
        session.screen.press("\x03");
        session.screen.wait_for(">>>");
        session.interrupt_until("KeyboardInterrupt\n>>>\nKeyboardInterrupt");
        session.line("print('six times seven is', 6 * 7)");
        session.screen.wait_for_row("six times seven is 42");
        session.running.sign("done");
        session.line("exit()");
        session.wait_for_prompt();
        assert!(!session.screen.rows().iter().any(|row| row == "noticed"), "{}", session.screen.text());
        session.run("echo code $?");
        session.screen.wait_for_row("code 0");
        session.finish();
    }
}

/// A job that has no terminal, or lends it to nobody, has no rank that the user can interrupt.
#[test]
fn a_sigint_to_one_rank_alone_is_its_failure() {
    let job = Job::of_program(rankrun(), ["-n", "2", "sh", "-c", "test $RANKRUN_RANK = 0 && kill -INT $$; sleep 600"]);
    let ended = job.run();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("rankrun: rank 0 failed: killed by SIGINT"), "{}", ended.stderr_text());
}
