use super::*;
use crate::stacks::ThreadState;
use crate::stacks::ThreadState::{Running, Sleeping, Stopped, Zombie};
use crate::stacks::fold::Seen;
use crate::stacks::samples::{another, child, rank, rank_in};

const AFTER: Duration = Duration::from_secs(600);
const ALLREDUCE: &str =
    "sched_yield@libc.so.6 < 0x91ab@libmpi.so.12 < PMPI_Allreduce@libmpi.so.12 < step train.py:88 < main train.py:140";

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn spec(action: Action) -> StallSpec {
    StallSpec { after: AFTER, action }
}

/// Ranks in a collective, and their CPU time grows: they spin.
fn waiting(ranks: u32, look: usize) -> Vec<Seen> {
    let mut seen: Vec<Seen> = (0..ranks).map(|number| rank(number, Running, ALLREDUCE)).collect();
    for seen in &mut seen {
        seen.stack.threads[0].run_us = 60_000_000 * look as u64;
        // The address inside of the library is another one each time.
        seen.stack.threads[0].frames[1].function = format!("0x91{look}b");
    }
    seen
}

/// Looks as often as it is wanted; what is seen depends on the number of the look. Returns what came of it, and when.
fn findings(
    mut stall: Stall,
    until: Duration,
    mut look: impl FnMut(usize, Duration) -> Vec<Seen>,
) -> Vec<(Duration, Finding)> {
    let mut found = Vec::new();
    let mut looks = 0;
    while let Some(now) = stall.deadline().filter(|now| *now <= until) {
        if stall.is_to_look(now) {
            let finding = stall.looked(now, None, prints(&look(looks, now)));
            looks += 1;
            if finding != Finding::No {
                found.push((now, finding));
            }
        }
    }
    found
}

/// What is found of ranks that always look like this, in an hour.
fn found(action: Action, has_terminal: bool, look: impl Fn(usize) -> Vec<Seen>) -> Vec<Finding> {
    let stall = Stall::new(spec(action), has_terminal, Duration::ZERO);
    findings(stall, s(3600), |number, _| look(number)).into_iter().map(|(_, finding)| finding).collect()
}

fn doubts(look: impl Fn(usize) -> Vec<Seen>) -> Vec<String> {
    let told = |action| -> Vec<String> {
        let text = |finding| match finding {
            Finding::No => "nothing".to_owned(),
            Finding::Stalled { .. } => "stalled".to_owned(),
            Finding::Waits { doubt, .. } => doubt.to_string(),
        };
        found(action, true, &look).into_iter().map(text).collect()
    };
    let (kill, warn) = (told(Action::Kill), told(Action::Warn));
    assert_eq!(kill, warn);
    kill
}

#[test]
fn the_option_is_read_as_people_write_it() {
    let given = |text: &str| match text.parse::<Given>() {
        Ok(Given(Some(spec))) => spec.to_string(),
        Ok(Given(None)) => "off".to_owned(),
        Err(error) => format!("error: {error}"),
    };
    let texts = [
        "10m",
        "10m:warn",
        "10m:kill",
        "90",
        "1h30m:kill",
        "0",
        "0s",
        "off",
        "1s",
        "500ms",
        "0:kill",
        "off:kill",
        "kill",
        "kill:10m",
        "10m:stop",
        "10m:kil",
        "10m:",
        ":kill",
        "",
        "10 minutes",
        "10m:kill:now",
        "-5m",
        "never",
    ];
    let lines: Vec<String> = texts.iter().map(|text| format!("{text:<14}{}", given(text))).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_hang_is_found_after_its_time_and_a_minute() {
    let stall = Stall::new(spec(Action::Kill), false, s(5));
    let found = findings(stall, s(7200), |look, _| waiting(512, look));
    assert_eq!(found, [(s(665), Finding::Stalled { silent: s(660) })], "it ends the job, and is not asked again");
}

#[test]
fn a_short_time_has_a_short_minute() {
    let stall = Stall::new(StallSpec { after: s(5), action: Action::Kill }, false, s(0));
    let found = findings(stall, s(7200), |look, _| waiting(4, look));
    let (at, _) = found[0];
    assert!(at > s(7) && at <= s(8), "{at:?}");
}

#[test]
fn one_rank_that_moves_once_is_a_sign_of_life() {
    for moving in 1..LOOKS {
        let stall = Stall::new(spec(Action::Kill), false, s(0));
        let found = findings(stall, s(1200), |look, _| {
            let mut seen = waiting(64, look);
            if look == moving {
                seen[17] = rank(17, Running, "forward model.py:12 < main train.py:139");
            }
            seen
        });
        assert_eq!(found, [], "look {moving}");
    }
}

#[test]
fn the_call_may_be_the_same_and_the_line_another() {
    let found = found(Action::Kill, false, |look| {
        let mut seen = waiting(4, look);
        seen[3].stack.threads[0].frames[3].line = Some(88 + (look % 2) as u32);
        seen
    });
    assert_eq!(found, []);
}

#[test]
fn signs_of_life_begin_the_time_anew() {
    let mut stall = Stall::new(spec(Action::Kill), false, s(0));
    assert!(!stall.is_to_look(s(599)));
    stall.sign(s(599));
    for now in (600..1199).step_by(20) {
        assert!(!stall.is_to_look(s(now)));
    }
    assert!(stall.is_to_look(s(1199)));
    assert_eq!(stall.looked(s(1199), None, prints(&waiting(4, 0))), Finding::No);
    stall.sign(s(1200));
    let found = findings(stall, s(1870), |look, _| waiting(4, look));
    assert_eq!(found, [(s(1860), Finding::Stalled { silent: s(660) })], "the look before the sign does not count");
}

#[test]
fn traffic_that_only_a_look_shows_is_a_sign_of_life() {
    let mut stall = Stall::new(spec(Action::Kill), false, s(0));
    while !stall.is_to_look(stall.deadline().expect("it is looked for")) {}
    assert_eq!(stall.looked(s(600), Some(s(590)), prints(&waiting(4, 0))), Finding::No);
    while !stall.is_to_look(stall.deadline().expect("it is looked for")) {}
    assert_eq!(stall.called, s(1190));
}

#[test]
fn a_time_in_which_nobody_ran_is_no_silence() {
    let mut stall = Stall::new(spec(Action::Kill), false, s(0));
    for now in (0..300).step_by(30) {
        assert!(!stall.is_to_look(s(now)));
    }
    // scontrol suspend, for a day.
    assert!(!stall.is_to_look(s(86_400)));
    assert!(stall.due.is_some_and(|due| due >= s(86_400 + 300) && due <= s(86_400 + 600)), "{stall:?}");
}

#[test]
fn a_rank_that_computes_is_not_ended() {
    let with = |look: usize, text: &str| {
        let mut seen = waiting(4, look);
        seen[2] = rank(2, Running, text);
        seen[2].stack.threads[0].run_us = 10_000_000 * look as u64;
        seen
    };
    for text in [
        "dgemm_kernel@libopenblas.so.0 < work train.py:12 < main train.py:140",
        "main halo.c:2",
        "0x1f40@solver < main@solver",
    ] {
        assert_eq!(doubts(|look| with(look, text)), ["rank 2 computes and may go on"], "{text}");
    }
    let all = |look: usize| {
        (0..4).map(|number| Seen { rank: Rank(number), ..with(look, "f a.py:1").swap_remove(2) }).collect()
    };
    assert_eq!(doubts(all), [""; 0], "nobody waits");
}

#[test]
fn a_rank_whose_threads_compute_is_not_ended() {
    let look = |look: usize| {
        let mut seen = waiting(4, look);
        seen[1] = rank(1, Sleeping, "__futex_wait@libc.so.6 < pthread_join@libc.so.6 < main solver.c:80");
        for number in 0..3 {
            another(
                &mut seen[1],
                "solver",
                Running,
                "kernel solver.c:12 < omp_fn solver.c:9 < gomp_thread_start@libgomp.so.1",
            );
            seen[1].stack.threads[number + 1].run_us = 5_000_000 * look as u64;
        }
        seen
    };
    assert_eq!(doubts(look), ["rank 1 computes and may go on"]);
    let blocked = |number: usize| {
        let mut seen = look(number);
        for thread in &mut seen[1].stack.threads[1..] {
            (thread.run_us, thread.state) = (0, Sleeping);
        }
        seen
    };
    assert_eq!(doubts(blocked), ["stalled"]);
}

#[test]
fn a_thread_that_goes_on_without_much_cpu_time_is_a_sign_of_life() {
    // It loads one file after another, and the main thread waits for it.
    let loading = |look: usize| {
        let mut seen =
            vec![rank(0, Sleeping, "futex@libc.so.6 < wait threading.py:359 < join threading.py:1112 < main a.py:3")];
        another(
            &mut seen[0],
            "loader",
            Sleeping,
            &format!("read@libc.so.6 < load a.py:{} < run threading.py:99", 10 + look % 3),
        );
        seen
    };
    assert_eq!(doubts(loading), [""; 0]);
    // Where it waits for other ranks, a thread that beats does not help.
    let beating = |look: usize| {
        let mut seen = waiting(2, look);
        another(&mut seen[0], "beat", Sleeping, &format!("clock_nanosleep < beat a.py:{}", 10 + look % 3));
        seen
    };
    assert_eq!(doubts(beating), ["stalled"]);
}

#[test]
fn threads_that_spin_for_others_do_not_compute() {
    let look = |look: usize| {
        let mut seen = waiting(2, look);
        for number in 1..3 {
            let text = "gomp_barrier_wait_end@libgomp.so.1 < gomp_thread_start@libgomp.so.1 < start_thread@libc.so.6";
            another(&mut seen[0], "solver", Running, text);
            seen[0].stack.threads[number].run_us = 60_000_000 * look as u64;
        }
        seen
    };
    assert_eq!(doubts(look), ["stalled"]);
}

#[test]
fn a_compiler_that_a_rank_waits_for_is_no_stall() {
    let look = |look: usize| {
        let mut seen = waiting(4, look);
        seen[0] = rank(0, Sleeping, "wait4@libc.so.6 < wait subprocess.py:1270 < build train.py:9 < main train.py:140");
        child(&mut seen[0], "cc1plus -O3 kernels.cu", Running, "");
        seen
    };
    assert_eq!(doubts(look), ["rank 0 computes and may go on"]);
    let dead = |number: usize| {
        let mut seen = look(number);
        seen[0].stack.others[0].state = Zombie;
        seen
    };
    assert_eq!(doubts(dead), ["stalled"]);
}

#[test]
fn what_waits_for_a_gpu_may_compute_there() {
    let text = "0x7f31@libcuda.so.1 < cudaStreamSynchronize@libcudart.so.12 < step train.py:88 < main train.py:140";
    let look = |look: usize| {
        let mut seen: Vec<Seen> = (0..8).map(|number| rank(number, Running, text)).collect();
        for seen in &mut seen {
            seen.stack.threads[0].frames[0].function = format!("0x7f{look}1");
        }
        seen
    };
    assert_eq!(doubts(look), [""; 0]);
    let one = |number: usize| {
        let mut seen = look(number);
        seen[5] = rank(5, Sleeping, "read@libc.so.6 < _recv_bytes connection.py:430 < main train.py:133");
        seen
    };
    assert_eq!(doubts(one), ["ranks 0-4,6-7 compute and may go on"]);
}

#[test]
fn somebody_who_types_or_debugs_knows() {
    let prompt = |_: usize| vec![rank(0, Sleeping, "read@libc.so.6 < builtin_input@python3.13 < <module> a.py:3")];
    assert_eq!(found(Action::Kill, true, prompt), []);
    let told = found(Action::Kill, false, prompt);
    assert!(matches!(&told[..], [Finding::Waits { doubt: Doubt::AtInput(_), .. }]), "a pipe: {told:?}");
    let by_child = |_: usize| {
        let mut seen = vec![rank(0, Sleeping, "wait4@libc.so.6 < waitchld < main")];
        child(&mut seen[0], "grep x", Sleeping, "read@libc.so.6 < main");
        seen[0].stack.others[0].reads_stdin = true;
        seen
    };
    let told = found(Action::Kill, false, by_child);
    assert!(matches!(&told[..], [Finding::Waits { doubt: Doubt::AtInput(_), .. }]), "a pipe: {told:?}");
    assert_eq!(found(Action::Kill, true, by_child), []);
    let held = |look: usize| {
        let mut seen = waiting(4, look);
        seen[3].stack.threads[0].state = Stopped;
        seen
    };
    assert_eq!(doubts(held), [""; 0]);
}

#[test]
fn a_rank_that_sleeps_may_wake_those_that_wait_for_it() {
    let one = |number: usize| {
        let mut seen = waiting(4, number);
        seen[2] = rank(2, Sleeping, "clock_nanosleep@libc.so.6 < poll a.py:3 < main a.py:9");
        seen
    };
    assert_eq!(doubts(one), ["rank 2 sleeps until a time"]);
}

#[test]
fn a_service_is_told_of_once() {
    let asleep = |number| rank(number, Sleeping, "clock_nanosleep@libc.so.6 < serve a.py:3 < main a.py:9");
    let sleeping = |_: usize| vec![asleep(0), asleep(1)];
    assert_eq!(doubts(sleeping), ["ranks 0-1 sleep until a time"]);
    // It writes a line each hour.
    let mut stall = Stall::new(spec(Action::Warn), false, s(0));
    let mut found = Vec::new();
    for hour in 0..24 {
        stall.sign(s(hour * 3600));
        let until = s((hour + 1) * 3600);
        while let Some(now) = stall.deadline().filter(|now| *now < until) {
            if stall.is_to_look(now) {
                found.extend(
                    Some(stall.looked(now, None, prints(&sleeping(0)))).filter(|finding| *finding != Finding::No),
                );
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn what_cannot_be_looked_into_is_not_ended_unless_it_never_ran() {
    let look = |look: usize, ran: u64| {
        let mut seen = waiting(4, look);
        seen[2] = rank(2, Sleeping, "");
        seen[2].stack.unseen = Some("a container forbids ptrace".to_owned());
        seen[2].stack.threads[0].run_us = ran * look as u64;
        seen
    };
    assert_eq!(doubts(|number| look(number, 10_000)), ["rank 2 could not be looked into"]);
    assert_eq!(doubts(|number| look(number, 0)), ["stalled"]);
    let missing = |number: usize| {
        let mut seen = look(number, 0);
        seen[2].stack.threads.clear();
        seen
    };
    assert_eq!(doubts(missing), ["rank 2 could not be looked into"]);
}

/// Ranks that wait for others, and one of them in none of the looks of `hidden`.
fn with_gaps(look: usize, hidden: impl Fn(usize) -> bool) -> Vec<Seen> {
    let mut seen = waiting(4, look);
    if hidden(look) {
        seen.remove(1);
    }
    seen
}

#[test]
fn a_look_that_does_not_show_all_ranks_is_repeated() {
    for first in 0..LOOKS {
        assert_eq!(doubts(|look| with_gaps(look, |look| look == first)), ["stalled"], "look {first}");
    }
    assert_eq!(doubts(|look| with_gaps(look, |look| look % 3 != 0)), ["stalled"], "two looks of three fail");
    let unread = |look: usize| {
        let mut seen = waiting(4, look);
        if look == 3 || look == 5 {
            seen[2] = rank(2, Running, "");
            seen[2].stack.threads[0].run_us = 60_000_000 * look as u64;
        }
        seen
    };
    assert_eq!(doubts(unread), ["stalled"]);
}

#[test]
fn a_rank_that_repeated_looks_do_not_show_is_not_ended() {
    assert_eq!(doubts(|look| with_gaps(look, |look| look > 2)), ["rank 1 could not be looked into"]);
    // Later looks show it: from then on it is certain.
    let for_a_time = |look: usize| with_gaps(look, |look| look > 2 && look < 3 + REPEATS as usize + 1);
    assert_eq!(doubts(for_a_time), ["rank 1 could not be looked into", "stalled"]);
}

#[test]
fn a_rank_that_waits_for_what_sleeps_is_not_ended() {
    let others = |own: Seen| {
        move |look: usize| {
            let mut seen = waiting(4, look);
            seen[2] = own.clone();
            seen
        }
    };
    let sleeping = ["rank 2 sleeps until a time"];
    let command = {
        let text = "wait4@libc.so.6 < Popen._wait subprocess.py:2011 < main train.py:133";
        let mut seen = rank(2, Sleeping, text);
        child(&mut seen, "sleep 1000", Sleeping, "clock_nanosleep@libc.so.6");
        seen.stack.others[0].sleeps = true;
        seen
    };
    let joined = {
        let mut seen = rank(2, Sleeping, "futex@libc.so.6 < Thread.join threading.py:1112 < main train.py:9");
        another(
            &mut seen,
            "loader",
            Sleeping,
            "clock_nanosleep@libc.so.6 < load data.py:7 < Thread.run threading.py:982",
        );
        seen
    };
    let region = {
        let mut seen = rank(2, Sleeping, "futex@libc.so.6 < gomp_team_end@libgomp.so.1 < main solver.c:80");
        another(&mut seen, "solver", Sleeping, "clock_nanosleep@libc.so.6 < kernel solver.c:9");
        seen
    };
    let java = rank(2, Sleeping, "pthread_cond_timedwait@libc.so.6 < JVM_Sleep@libjvm.so < 0x7f@generated < JavaMain");
    let at_exit =
        rank(2, Sleeping, "clock_nanosleep@libc.so.6 < flush cache.c:8 < __run_exit_handlers@libc.so.6 < exit");
    let unread = rank_in(2, Sleeping, "clock_nanosleep", "");
    let perl = rank_in(2, Sleeping, "pselect6 without files", "select@libc.so.6 < Perl_pp_sselect@perl");
    for own in [command, joined, region, java, at_exit, perl] {
        let name = format!("{:?}", own.stack.threads[0].frames);
        let look = others(own);
        assert_eq!(doubts(&look), sleeping, "{name}");
    }
    let look = others(unread);
    assert_eq!(doubts(&look), ["rank 2 could not be looked into"; 0].into_iter().chain(sleeping).collect::<Vec<_>>());
    // What waits for other ranks does not wait for what sleeps beside it.
    let beside = |look: usize| {
        let mut seen = waiting(4, look);
        child(&mut seen[1], "sh monitor.sh", Sleeping, "clock_nanosleep@libc.so.6");
        seen[1].stack.others[0].sleeps = true;
        seen
    };
    assert_eq!(doubts(beside), ["stalled"]);
}

#[test]
fn a_wait_whose_time_limit_outlasts_the_looks_is_a_sleep() {
    let with = |limit_ms: fn(usize) -> u64| {
        move |look: usize| {
            let mut seen = waiting(4, look);
            seen[2] =
                rank_in(2, Sleeping, "futex", "sem_clockwait@libc.so.6 < Event.wait threading.py:607 < main a.py:9");
            seen[2].stack.threads[0].limit_ms = Some(limit_ms(look));
            seen
        }
    };
    let sleeping = ["rank 2 sleeps until a time"];
    assert_eq!(doubts(with(|_| 60_000)), sleeping);
    let left = doubts(with(|look| 70_000u64.saturating_sub(8_000 * look as u64)));
    assert_eq!(left[0], sleeping[0], "less is left of it at each look");
    assert_eq!(doubts(with(|_| 59_000)), ["stalled"], "it ends between the looks, and is repeated");
    // A process of the rank, and one that other ranks keep waiting.
    let of_child = |look: usize| {
        let mut seen = waiting(4, look);
        seen[2] = rank(2, Sleeping, "wait4@libc.so.6 < main run.c:7");
        child(&mut seen[2], "./serve", Sleeping, "epoll_wait@libc.so.6");
        seen[2].stack.others[0].limit_ms = Some(90_000);
        seen
    };
    assert_eq!(doubts(of_child), sleeping);
    let in_mpi = |look: usize| {
        let mut seen = waiting(4, look);
        seen[2].stack.threads[0].limit_ms = Some(90_000);
        seen
    };
    assert_eq!(doubts(in_mpi), ["stalled"]);
}

#[test]
fn a_rank_in_java_is_seen_by_the_thread_that_runs_main() {
    let look = |_| {
        let ranks = (0..2).map(|number| {
            let text = "pthread_join@libc.so.6 < CallJavaMainInNewThread@libjli.so";
            let mut seen = rank_in(number, Sleeping, "futex for the end of thread 7", text);
            another(&mut seen, "java", Sleeping, "read@libc.so.6 < handleRead@libnet.so < JavaMain@libjli.so");
            seen
        });
        ranks.collect()
    };
    assert_eq!(doubts(look), ["stalled"]);
}

#[test]
fn a_rank_of_which_any_thread_reads_stdin_is_not_ended() {
    let kernels = ["read stdin, pipe:[7]", "poll stdin, pipe:[7]", "epoll_wait stdin and others, pipe:[7]"];
    for kernel in kernels {
        let look = |look: usize| {
            let mut seen = waiting(4, look);
            another(&mut seen[1], "commands", Sleeping, "read@libc.so.6 < listen serve.c:4");
            seen[1].stack.threads[1].kernel = Some(kernel.to_owned());
            seen
        };
        let told: Vec<Finding> = found(Action::Kill, false, look);
        let [Finding::Waits { doubt, .. }] = told.as_slice() else { panic!("{kernel}: {told:?}") };
        assert_eq!(doubt.to_string(), "rank 1 waits for input on stdin", "{kernel}");
        assert_eq!(found(Action::Kill, true, look), [], "somebody may type");
    }
    let pipe = |look: usize| {
        let mut seen = waiting(4, look);
        another(&mut seen[1], "commands", Sleeping, "read@libc.so.6 < listen serve.c:4");
        seen[1].stack.threads[1].kernel = Some("read pipe:[9]".to_owned());
        seen
    };
    assert_eq!(doubts(pipe), ["stalled"]);
}

#[test]
fn one_rank_that_computes_while_all_others_wait_is_told_of_with_a_doubt() {
    let with = |count: u32, moving: &'static [u32]| {
        move |look: usize| {
            let mut seen = waiting(count, look);
            for number in moving {
                seen[*number as usize] =
                    rank(*number, Running, &format!("loop train.py:{} < main train.py:9", look % 3));
            }
            seen
        }
    };
    assert_eq!(doubts(with(2, &[1])), ["rank 1 computes and may go on"]);
    assert_eq!(doubts(with(64, &[17])), ["rank 17 computes and may go on"]);
    assert_eq!(doubts(with(8, &[2, 5])), ["ranks 2,5 compute and may go on"]);
    // Many that compute are a job that works, and so is one that writes.
    assert_eq!(doubts(with(4, &[0, 1])), [""; 0]);
    let writes = |look: usize| {
        let mut seen = with(4, &[3])(look);
        seen[3].stack.written = Some(4096 * look as u64);
        seen
    };
    assert_eq!(doubts(writes), [""; 0]);
    // One that reads at another place each time goes on.
    let reads = |look: usize| {
        let mut seen = waiting(4, look);
        seen[3] = rank(3, Sleeping, &format!("read@libc.so.6 < load a.py:{}", look % 3));
        seen
    };
    assert_eq!(doubts(reads), [""; 0]);
}

#[test]
fn a_job_that_computes_first_and_hangs_later_is_ended() {
    let look = |look: usize| {
        let mut seen = waiting(4, look);
        if look < LOOKS + 2 {
            seen[0] = rank(0, Running, "solve train.py:7 < main train.py:150");
            seen[0].stack.threads[0].run_us = 60_000_000 * look as u64;
        }
        seen
    };
    assert_eq!(doubts(look), ["rank 0 computes and may go on", "stalled"]);
}

#[test]
fn looks_without_any_answer_are_tried_again() {
    let mut stall = Stall::new(spec(Action::Kill), false, s(0));
    while !stall.is_to_look(stall.deadline().expect("it is looked for")) {}
    assert_eq!(stall.looked(s(606), None, BTreeMap::new()), Finding::No);
    assert_eq!(stall.due, Some(s(666)));
    assert_eq!(findings(stall, s(800), |look, _| waiting(4, look)), [(s(726), Finding::Stalled { silent: s(726) })]);
}

#[path = "stall_property_tests.rs"]
mod properties;
