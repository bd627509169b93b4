//! A job that prints nothing shows on its terminal that it runs (docs/output.md).

use rankrun_tests::Tier;
use rankrun_tests::screen::Session;

#[test]
fn a_job_that_prints_nothing_has_a_clock_on_its_terminal_and_leaves_no_trace_of_it() {
    let mut session = Session::start(Tier::sampled()[0]);
    session.line("$R -n 2 sh -c 'until [ -e $RANKRUN_TEST_DIR/go ]; do sleep 0.05; done; echo over'; echo code $?");
    session.screen.wait_for("rankrun: 2 ranks, 0:00:10; nothing printed for 0:00:10");
    session.running.sign("go");
    session.wait_for_prompt();
    session.screen.wait_for_row("code 0");
    assert!(!session.screen.text().contains("nothing printed"), "{}", session.screen.text());
    assert_eq!(session.screen.rows().iter().filter(|row| *row == "over").count(), 2);
    session.finish();
}
