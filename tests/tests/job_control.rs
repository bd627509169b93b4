//! A person at a terminal: keys, job control, windows, modes and screens are as they would be without rankrun
//! (docs/signals.md).

use std::fs;
use std::time::Duration;

use rankrun_core::gang::SECOND_INTERRUPT;
use rankrun_tests::processes::{self, is_alive};
use rankrun_tests::screen::Session;
use rankrun_tests::{Job, Tier, monotonic, skip, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(30);

/// Whether a process stands still: stopped by a signal, or in a frozen cgroup.
fn stands_still(pid: i32) -> bool {
    if processes::process(pid).is_some_and(|process| process.state == 'T') {
        return true;
    }
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then_some(path)
    });
    let events = format!("{}/{own}/cgroup.events", mount.unwrap_or("/sys/fs/cgroup"));
    fs::read_to_string(events).is_ok_and(|text| text.lines().any(|line| line == "frozen 1"))
}

fn wait_still(session: &Session, pids: &[i32], still: bool) {
    let what = if still { "standing still of the ranks" } else { "going on of the ranks" };
    session.screen.wait(what, |_| pids.iter().all(|pid| stands_still(*pid) == still));
}

/// A rank that counts in a file of its own, once the file `NAME.pid` holds its pid. It starts no process: a shell that is
/// just starting one (vfork) is not stopped but waits for the one that is.
const COUNT: &str = "cd $RANKRUN_TEST_DIR; mkfifo $RANKRUN_RANK.fifo; exec 9<>$RANKRUN_RANK.fifo; \
                     echo $$ > $RANKRUN_RANK.pid; \
                     while :; do echo >> $RANKRUN_RANK.count; read -t 0.01 -u 9; done";

/// Starts four ranks that count, and returns their pids.
fn start_counting(session: &Session, options: &str) -> Vec<i32> {
    session.line(&format!("$R -n 4 {options} bash -c '{COUNT}'"));
    let pids: Vec<i32> = (0..4).map(|rank| session.pid(&format!("{rank}.pid"))).collect();
    for rank in 0..4 {
        wait_count(session, rank, 1);
    }
    pids
}

fn count(session: &Session, rank: usize) -> u64 {
    fs::metadata(session.running.directory().join(format!("{rank}.count"))).map_or(0, |meta| meta.len())
}

fn wait_count(session: &Session, rank: usize, least: u64) {
    session.screen.wait(&format!("count of rank {rank}"), |_| count(session, rank) >= least);
}

fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|directory| directory.join(program).exists());
    if !found {
        skip(&format!("\"{program}\" is not installed"));
    }
    found
}

#[test]
fn the_suspend_key_stops_every_rank_and_fg_and_bg_continue_them() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let pids = start_counting(&session, "");
        for turn in 0..3 {
            session.screen.press("\x1a");
            session.wait_for_prompt();
            wait_still(&session, &pids, true);
            let before: Vec<u64> = (0..4).map(|rank| count(&session, rank)).collect();
            session.run("sleep 0.2");
            assert_eq!(before, (0..4).map(|rank| count(&session, rank)).collect::<Vec<_>>(), "{tier:?}");
            if turn == 1 {
                session.run("bg");
                wait_still(&session, &pids, false);
                (0..4).for_each(|rank| wait_count(&session, rank, before[rank] + 2));
                session.line("fg");
                session.screen.wait("the job in the foreground", |screen| {
                    screen.foreground() == processes::process(pids[0]).map_or(0, |_| front_of(pids[0]))
                });
            } else {
                session.line("fg");
                wait_still(&session, &pids, false);
                (0..4).for_each(|rank| wait_count(&session, rank, before[rank] + 2));
            }
        }
        session.screen.press("\x03");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 130");
        session.finish();
    });
}

/// The front of the job that this leader belongs to: rank, agent, guard, front.
fn front_of(leader: i32) -> i32 {
    let parent = |pid| processes::process(pid).map_or(0, |process| process.parent);
    parent(parent(parent(leader)))
}

#[test]
fn a_pause_asked_for_by_a_signal_is_carried_out_and_ended_by_another() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let pids = start_counting(&session, "");
        processes::send(front_of(pids[0]), Signal::TSTP);
        session.wait_for_prompt();
        wait_still(&session, &pids, true);
        processes::send(front_of(pids[0]), Signal::CONT);
        wait_still(&session, &pids, false);
        processes::send(front_of(pids[0]), Signal::TERM);
        session.screen.wait("end of the ranks", |_| !pids.iter().any(|pid| is_alive(*pid)));
        session.finish();
    });
}

#[test]
fn a_pause_asked_for_where_no_shell_controls_the_job_lasts_until_it_is_ended() {
    Tier::in_each(|tier| {
        let script = "echo $$ > $RANKRUN_TEST_DIR/$RANKRUN_RANK.pid; exec sleep 1000";
        let running = Job::new(["-n", "2", "sh", "-c", script]).tier(tier).start();
        let pid: i32 = running.wait_for_text("1.pid").trim().parse().expect("a pid");
        processes::send(running.front(), Signal::TSTP);
        let pids = [pid, running.front()];
        let stopped = wait_until(BOUND, || pids.iter().all(|pid| stands_still(*pid)).then_some(()));
        assert!(stopped.is_some(), "rank {pid}: {:?}", running.processes());
        processes::send(running.front(), Signal::CONT);
        assert!(wait_until(BOUND, || (!stands_still(pid)).then_some(())).is_some());
        processes::send(running.front(), Signal::TERM);
        assert_eq!(running.finish(BOUND).signal, Some(15));
    });
}

#[test]
fn time_stands_still_with_the_ranks() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let pids = start_counting(&session, "--timeout 2");
        session.screen.press("\x1a");
        session.wait_for_prompt();
        wait_still(&session, &pids, true);
        session.run("sleep 2.5");
        session.line("fg");
        let resumed = monotonic();
        let before = count(&session, 0);
        wait_count(&session, 0, before + 5);
        session.wait_for_prompt();
        assert!(monotonic() - resumed < Duration::from_secs(10), "the time-out counts what is left of it");
        session.run("echo code $?");
        session.screen.wait_for_row("code 124");
        session.finish();
    });
}

#[test]
fn the_interrupt_key_ends_every_rank_and_the_loop_around_them() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        session.line("for turn in 1 2 3; do $R -n 4 sh -c 'echo up; exec sleep 1000'; done");
        session.screen.wait("four ranks", |screen| screen.rows().iter().filter(|row| *row == "up").count() == 4);
        session.screen.press("\x03");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 130");
        assert_eq!(session.screen.rows().iter().filter(|row| *row == "up").count(), 4, "{}", session.screen.text());
        // Our own words start in the first column, over the ^C of the terminal.
        let ours = session.screen.rows().iter().filter(|row| row.starts_with("rankrun: interrupt: stopping")).count();
        assert_eq!(ours, 1, "{}", session.screen.text());
        session.finish();
    });
}

#[test]
fn a_script_around_one_rank_ends_with_it_when_the_interrupt_key_is_pressed() {
    for shell in ["bash", "sh"] {
        let mut session = Session::start(Tier::Subreaper);
        session.line(&format!("{shell} -c 'for turn in 1 2 3; do $R -n 1 sleep 1000; echo turn; done'; echo left"));
        session.screen.wait("a rank with the terminal", |screen| {
            processes::process(screen.foreground()).is_some_and(|process| process.name == "sleep")
        });
        session.screen.press("\x03");
        session.wait_for_prompt();
        assert!(!session.screen.rows().iter().any(|row| row.ends_with("turn")), "{}", session.screen.text());
        session.finish();
    }
}

#[test]
fn a_second_interrupt_kills_at_once_what_ignores_the_first() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        session.line("$R -n 4 sh -c 'trap \"\" TERM INT; echo up; while :; do sleep 1; done'");
        session.screen.wait("four ranks", |screen| screen.rows().iter().filter(|row| *row == "up").count() == 4);
        session.screen.press("\x03");
        session.screen.wait_for("^C again kills now");
        // Two within half a second count as one: terminals repeat keys.
        rankrun_tests::pause(SECOND_INTERRUPT + Duration::from_millis(100));
        let pressed = monotonic();
        session.screen.press("\x03");
        session.wait_for_prompt();
        assert!(monotonic() - pressed < Duration::from_secs(10), "not the grace of 25 s");
        session.run("echo code $?");
        session.screen.wait_for_row("code 130");
        session.finish();
    });
}

#[test]
fn an_interpreter_is_suspended_and_continued_as_if_run_directly() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        session.line("PYTHON_BASIC_REPL=1 $R -n 1 python3 -q");
        session.screen.wait_for(">>>");
        for turn in 1..=3 {
            session.screen.press("\x1a");
            session.wait_for_prompt();
            session.screen.wait_for("Stopped");
            session.line("fg");
            session.line(&format!("print('turn', {turn} * 100)"));
            session.screen.wait_for_row(&format!("turn {turn}00"));
        }
        session.interrupt_until("KeyboardInterrupt");
        session.line("raise SystemExit(7)");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 7");
        session.finish();
    });
}

#[test]
fn fg_of_a_running_job_gives_its_rank_the_terminal() {
    Tier::in_each(|tier| {
        for shell in [&["bash", "--norc", "--noprofile", "--noediting", "-i"][..], &["sh", "-im"]] {
            let mut session = match shell {
                [shell, flags] => Session::start_by(tier, [shell, flags]),
                _ => Session::start(tier),
            };
            session.line("PYTHON_BASIC_REPL=1 $R -n 1 python3 -q");
            session.screen.wait_for(">>>");
            let rank = session.screen.foreground();
            let job = [rank, front_of(rank)];
            session.screen.press("\x1a");
            session.wait_for_prompt();
            // In the background it is stopped as soon as it wants to read; with the job in the foreground, it gets the
            // terminal then. dash, and bash where a line comes before the `fg` is carried out, take that stop for one
            // after the `fg`, whatever program they run.
            if shell[0] == "bash" {
                session.run("bg");
                session.line("fg");
                // A stop that was under way when `fg` came is shown as a new one, with or without rankrun: `fg` again.
                let mut again = false;
                session.screen.wait("the job in the foreground, to stay", |screen| {
                    let stops = screen.all().matches("Stopped").count();
                    if stops == 2 && !again {
                        again = true;
                        screen.press("fg\n");
                    }
                    job.contains(&screen.foreground()) && processes::process(rank).is_some_and(|rank| rank.state == 'S')
                });
            } else {
                session.line("fg");
            }
            session.line("print('six times seven is', 6 * 7)");
            session.screen.wait_for_row("six times seven is 42");
            session.interrupt_until("KeyboardInterrupt");
            session.line("exit()");
            session.wait_for_prompt();
            session.finish();
        }
    });
}

#[test]
fn keys_reach_the_rank_of_a_running_job_that_was_brought_to_the_foreground() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let script = "trap \"echo caught; exit 5\" INT; echo $$ > $RANKRUN_TEST_DIR/0.pid; \
                      while :; do sleep 0.02; done";
        session.run(&format!("$R -vv -n 1 sh -c '{script}' &"));
        let front = front_of(session.pid("0.pid"));
        session.screen.wait_for("rank 0 started");
        session.line("fg");
        session.screen.wait("the job in the foreground", |screen| screen.foreground() == front);
        session.screen.press("\x03");
        session.screen.wait_for("caught");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 5");
        session.finish();
    });
}

#[test]
fn a_job_in_the_background_takes_neither_the_terminal_nor_what_is_typed() {
    Tier::in_each(|tier| {
        for ranks in [1, 4] {
            let mut session = Session::start(tier);
            session.run(&format!("$R -n {ranks} sh -c 'echo up; cat; echo saw the end' &"));
            session.screen.wait(&format!("{ranks} ranks"), |screen| {
                screen.rows().iter().filter(|row| row.ends_with("up")).count() == ranks
            });
            for turn in 0..5 {
                session.run(&format!("echo typed $(({turn} + 100))"));
                session.screen.wait_for_row(&format!("typed 10{turn}"));
            }
            if ranks == 1 {
                // The shell reports its jobs only on request.
                let stopped = wait_until(BOUND, || {
                    session.run("jobs");
                    session.screen.text().contains("Stopped").then_some(())
                });
                assert!(stopped.is_some(), "{}", session.screen.text());
                session.run("kill %1");
            }
            session.finish();
        }
    });
}

#[test]
fn a_suspend_key_that_no_shell_answers_changes_nothing() {
    Tier::in_each(|tier| {
        let script = "import signal, time\n\
                      signal.signal(signal.SIGCONT, lambda *_: print('continued'))\n\
                      signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
                      print('up')\n\
                      while True: time.sleep(0.02)\n";
        for ranks in ["1", "2"] {
            let session = Session::start_alone(tier, &["-n", ranks, "python3", "-u", "-c", script]);
            session.screen.wait_for("up");
            session.screen.press("\x1a");
            if ranks == "1" {
                session.screen.wait_for("continued");
            }
            session.screen.press("\x03");
            let Session { running, .. } = session;
            assert_eq!(running.finish(BOUND).signal, Some(2), "{tier:?}, {ranks} ranks");
        }
    });
}

#[test]
fn an_editor_draws_resizes_suspends_and_leaves_no_trace() {
    if !has("vi") {
        return;
    }
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let modes = session.screen.modes();
        session.line("$R -n 1 vi -u NONE -i NONE -n \"$RANKRUN_TEST_DIR/text\"");
        session.screen.wait("the editor", |screen| screen.is_alternate() && screen.rows()[22] == "~");
        session.screen.press("ihello\x1b");
        session.screen.wait("the text", |screen| screen.rows()[0] == "hello" && screen.cursor() == (0, 4));
        session.screen.resize(30, 100);
        session.screen.wait("the new window", |screen| screen.rows()[28] == "~");
        session.screen.press("\x1a");
        session.wait_for_prompt();
        assert!(!session.screen.is_alternate());
        assert_eq!(session.screen.modes(), modes);
        session.line("fg");
        session.screen.wait("the editor again", |screen| screen.is_alternate() && screen.rows()[0] == "hello");
        session.screen.press(":wq\n");
        session.wait_for_prompt();
        assert!(!session.screen.is_alternate());
        assert_eq!(session.screen.modes(), modes);
        let text = fs::read_to_string(session.running.directory().join("text"));
        assert_eq!(text.expect("the editor has written"), "hello\n");
        session.finish();
    });
}

#[test]
fn the_modes_are_put_back_when_a_raw_rank_is_killed_and_messages_keep_their_columns() {
    Tier::in_each(|tier| {
        for ranks in ["1", "2"] {
            let mut session = Session::start(tier);
            let modes = session.screen.modes();
            session.line(&format!(
                "$R -n {ranks} sh -c 'test -t 0 && stty raw -echo && echo $$ > $RANKRUN_TEST_DIR/0.pid; sleep 1000'"
            ));
            let pid = session.pid("0.pid");
            assert_ne!(session.screen.modes(), modes);
            processes::send(pid, Signal::KILL);
            session.wait_for_prompt();
            assert_eq!(session.screen.modes(), modes, "{tier:?}, {ranks} ranks");
            let rows = session.screen.rows();
            let report = rows.iter().position(|row| row.starts_with("rankrun: rank 0 failed"));
            let report = report.unwrap_or_else(|| panic!("no report: {rows:#?}"));
            assert!(rows[report + 1].starts_with("  where"), "{rows:#?}");
            session.finish();
        }
    });
}

#[test]
fn messages_to_a_raw_terminal_keep_their_columns() {
    let session = Session::start(Tier::Subreaper);
    session.line(
        "$R -v -n 1 sh -c 'stty raw -echo; echo $$ > $RANKRUN_TEST_DIR/0.pid; trap \"\" TERM; while :; do sleep 1; done'",
    );
    let pid = session.pid("0.pid");
    let front = front_of(pid);
    processes::send(front, Signal::TERM);
    session.screen.wait("message", |screen| screen.rows().iter().any(|row| row.starts_with("rankrun: SIGTERM")));
    session.screen.wait("the cursor in the first column", |screen| screen.cursor().1 == 0);
    processes::send(pid, Signal::KILL);
    session.finish();
}

#[test]
fn a_program_that_sets_the_modes_and_succeeds_has_set_them() {
    let mut session = Session::start(Tier::Subreaper);
    session.run("$R -n 1 stty -echo; stty -a | grep -o -- -echo; $R -n 1 stty echo");
    session.screen.wait_for_row("-echo");
    session.finish();
}

#[test]
fn every_pty_of_a_rank_follows_the_window() {
    for stdio in ["auto", "pty"] {
        let mut session = Session::start(Tier::Subreaper);
        let script = "trap \"stty size <&1 >&2; stty size <&2 >&2\" WINCH; \
                      echo up; while test ! -e $RANKRUN_TEST_DIR/done; do sleep 0.02; done";
        session.line(&format!("$R -n 2 -l --stdio {stdio} sh -c '{script}'"));
        session.screen.wait_for_row("[1] up");
        session.screen.wait_for_row("[0] up");
        session.screen.resize(33, 101);
        let streams = if stdio == "pty" { 2 } else { 1 };
        for rank in 0..2 {
            let row = format!("[{rank}] 33 101");
            session.screen.wait(&format!("{streams} rows \"{row}\" under --stdio {stdio}"), |screen| {
                screen.rows().iter().filter(|shown| **shown == row).count() == streams
            });
        }
        session.running.sign("done");
        session.wait_for_prompt();
        session.finish();
    }
}

#[test]
fn a_chosen_rank_gets_a_debugger_prompt_beside_the_output_of_the_others() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let program = "import os, time\n\
                       rank = int(os.environ['RANKRUN_RANK'])\n\
                       print('rank', rank, 'is here', flush=True)\n\
                       while rank != 3 and not os.path.exists(os.environ['RANKRUN_TEST_DIR'] + '/done'): time.sleep(0.02)\n\
                       answer = rank + 39\n";
        fs::write(session.running.directory().join("program.py"), program).expect("the job's directory is ours");
        session.line("$R -n 4 --tty 3 --wrap 0-2:python3 --wrap '3:python3 -m pdb' $RANKRUN_TEST_DIR/program.py");
        session.screen.wait_for("(Pdb)");
        for rank in 0..3 {
            session.screen.wait_for(&format!("rank {rank} is here"));
        }
        session.line("break 5");
        session.screen.wait_for("Breakpoint 1");
        session.line("continue");
        session.line("print('rank + 39 is', rank + 39)");
        session.screen.wait_for_row("rank + 39 is 42");
        session.running.sign("done");
        session.line("quit");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 0");
        session.finish();
    });
}

#[test]
fn a_real_debugger_runs_interrupts_and_inspects_a_chosen_rank() {
    if !has("gdb") {
        return;
    }
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let modes = session.screen.modes();
        session.line("$R -n 4 --tty 3 --wrap '3:gdb -q -nx --args' sleep 1000");
        session.screen.wait_for("(gdb)");
        session.line("set startup-with-shell off");
        session.line("set confirm off");
        session.line("run");
        session.screen.wait("the debugged program in the foreground", |screen| {
            processes::process(screen.foreground()).is_some_and(|process| process.name == "sleep")
        });
        session.screen.press("\x03");
        session.screen.wait_for("SIGINT");
        session.line("print 6 * 7");
        session.screen.wait_for("= 42");
        session.line("kill");
        session.line("quit 9");
        session.wait_for_prompt();
        session.run("echo code $?");
        session.screen.wait_for_row("code 9");
        assert_eq!(session.screen.modes(), modes);
        session.finish();
    });
}

#[test]
fn progress_bars_stand_in_a_region_that_is_gone_at_the_end() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        let script = "for percent in 10 20 30; do printf \"\\r$percent%%\"; done; \
                      while test ! -e $RANKRUN_TEST_DIR/line; do sleep 0.02; done; \
                      test $RANKRUN_RANK = 0 && printf \"\\rhalf way\\n\"; printf \"\\r60%%\"; \
                      while test ! -e $RANKRUN_TEST_DIR/done; do sleep 0.02; done; printf \"\\rall done\\n\"";
        session.line(&format!("clear; $R -n 4 -l sh -c '{script}'"));
        let region = |percent: &str| (0..4).map(|rank| format!("[{rank}] {percent}")).collect::<Vec<_>>().join("\n");
        session.screen.wait("four bars", |screen| screen.text() == region("30%"));
        // A pause takes the region away before the shell writes, and it comes back below.
        session.screen.press("\x1a");
        session.wait_for_prompt();
        assert!(!session.screen.text().contains("30%"), "{}", session.screen.text());
        session.line("fg");
        session.screen.wait("four bars again", |screen| screen.text().ends_with(&region("30%")));
        assert_eq!(session.screen.text().matches("[2] 30%").count(), 1, "{}", session.screen.text());
        session.running.sign("line");
        session.screen.wait("a line above the bars", |screen| {
            screen.text().ends_with(&format!("[0] half way\n{}", region("60%")))
        });
        session.running.sign("done");
        session.wait_for_prompt();
        let rows = session.screen.rows();
        let done: Vec<&String> = rows.iter().filter(|row| row.ends_with("] all done")).collect();
        assert!(done.len() == 4 && !session.screen.text().contains("60%\n"), "{rows:#?}");
        session.finish();
    });
}

#[test]
fn a_loop_that_reads_the_terminal_or_a_file_loses_nothing() {
    let mut session = Session::start(Tier::Subreaper);
    let lines: String = (0..20).map(|number| format!("line {number}\n")).collect();
    fs::write(session.running.directory().join("lines"), &lines).expect("the job's directory is ours");
    session.run(
        "cd $RANKRUN_TEST_DIR; while read -r line; do $R -n 1 true; echo \"$line\"; done < lines > out; cmp lines out && echo same one",
    );
    session.screen.wait_for_row("same one");
    session.run(
        "cat lines | while read -r line; do $R -n 4 true; echo \"$line\"; done > out; cmp lines out && echo same two",
    );
    session.screen.wait_for_row("same two");
    session.line("while read -r line; do $R -n 1 true; echo \"got $line\"; test \"$line\" = c && break; done");
    session.screen.press("a\nb\nc\n");
    for letter in ["a", "b", "c"] {
        session.screen.wait_for_row(&format!("got {letter}"));
    }
    session.wait_for_prompt();
    session.finish();
}

#[test]
fn closed_streams_and_hang_ups_are_survived() {
    Tier::in_each(|tier| {
        let mut session = Session::start(tier);
        session.run("cd $RANKRUN_TEST_DIR; $R -n 2 sh -c 'cat; echo fine' <&- | sort | uniq -c");
        session.screen.wait_for("2 fine");
        session.run("$R -n 2 sh -c 'echo lost; exit 3' >&-; echo code $?");
        session.screen.wait_for_row("code 3");
        session.run("$R -n 2 sh -c 'echo lost; exit 4' <&- >&- 2>&-; echo code $?");
        session.screen.wait_for_row("code 4");
        let script = "echo $$ > $RANKRUN_RANK.pid; while test ! -e done; do sleep 0.02; done; echo done here";
        session.run(&format!("nohup $R -n 2 sh -c '{script}' > nohup.log 2>&1 &"));
        let pids = [session.pid("0.pid"), session.pid("1.pid")];
        processes::send(front_of(pids[0]), Signal::HUP);
        pids.into_iter().for_each(|pid| processes::send(pid, Signal::HUP));
        session.line("exit");
        let Session { running, .. } = session;
        assert!(wait_until(BOUND, || running.front_ended()).is_some(), "the shell ends");
        assert!(pids.into_iter().all(is_alive));
        running.sign("done");
        let log = running.directory().join("nohup.log");
        let came = wait_until(BOUND, || {
            (fs::read_to_string(&log).unwrap_or_default().matches("done here\n").count() == 2).then_some(())
        });
        assert!(came.is_some(), "{:?}", fs::read_to_string(&log));
        running.finish(BOUND);
    });
}
