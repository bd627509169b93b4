use std::fmt::Write as _;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::WorkerStatus;
use crate::ids::Pid;
use crate::stacks::ThreadState::{Running, Sleeping, Stopped, Traced, Uninterruptible, Zombie};
use crate::stacks::samples::{another, child, rank, rank_in};

// Frames as they were recorded from MPICH, Open MPI, torch and Debian's programs.
const REDUCE: &str = "sched_yield@libc.so.6 < 0x3d1c2@libmpi.so.12 < MPIR_Allreduce_intra_recursive_doubling@libmpi.so.12 < \
    PMPI_Allreduce@libmpi.so.12 < mpi4py.MPI.Comm.allreduce@MPI.so < reduce_gradients train.py:88 < step train.py:120 < \
    main train.py:140 < <module> train.py:150";
const GLOO: &str = "0x85f16@libc.so.6 < pthread_cond_wait@libc.so.6 < std::condition_variable::wait@libstdc++.so.6.0.30 < \
    c10d::Work::wait@libtorch_cpu.so < pybind11::cpp_function::dispatcher@libtorch_python.so < \
    all_reduce distributed_c10d.py:4181 < _exception_logger.wrapper c10d_logger.py:83 < reduce_gradients train.py:3 < \
    main train.py:8 < <module> train.py:9";
const LOADER: &str = "poll@libc.so.6 < select selectors.py:416 < wait connection.py:947 < _poll connection.py:440 < \
    poll connection.py:257 < get queues.py:113 < _MultiProcessingDataLoaderIter._try_get_data dataloader.py:1288 < \
    _MultiProcessingDataLoaderIter._next_data dataloader.py:1445 < main train.py:133 < <module> train.py:150";
const HALO: &str =
    "sched_yield@libc.so.6 < 0x9a1@libmpi.so.12 < PMPI_Recv@libmpi.so.12 < exchange halo.c:31 < main halo.c:80";

fn ranks(count: u32, state: ThreadState, text: &str) -> Vec<Seen> {
    (0..count).map(|number| rank(number, state, text)).collect()
}

/// `count` ranks, of which one is another.
fn but(count: u32, text: &str, other: Seen) -> Vec<Seen> {
    let mut seen = ranks(count, Running, text);
    let at = other.rank.number() as usize;
    seen[at] = other;
    seen
}

fn with_child(mut seen: Seen, command: &str, state: ThreadState, text: &str) -> Seen {
    child(&mut seen, command, state, text);
    seen
}

fn killed(mut seen: Seen) -> Seen {
    seen.stack.others[0].status = Some(WorkerStatus::Signaled { signal: 9, core_dumped: false });
    seen
}

fn unseen(number: u32, why: &str) -> Seen {
    let mut seen = rank(number, Sleeping, "");
    seen.stack.unseen = Some(why.to_owned());
    seen
}

fn gone(mut seen: Seen) -> Seen {
    seen.stack.interpreter = Interpreter::Gone;
    seen
}

#[test]
fn people_see_where_ranks_hang_and_who_is_odd() {
    let python =
        |number, text: &str| rank(number, Sleeping, &format!("{text} < main train.py:133 < <module> train.py:150"));
    let mut opposite = ranks(4, Running, HALO);
    opposite[1] = rank(1, Running, &HALO.replace("PMPI_Recv", "PMPI_Bcast").replace(":31", ":35"));
    opposite[2] = rank(2, Running, &HALO.replace("PMPI_Recv", "PMPI_Bcast").replace(":31", ":35"));
    let finalize =
        "0x9a1@libmpi.so.12 < PMPI_Finalize@libmpi.so.12 < 0x88@MPI.so < 0x458f2f@python3.11 < Py_RunMain@python3.11";
    let mut threads = ranks(4, Running, REDUCE);
    threads[3] = rank(3, Sleeping, "futex@libc.so.6 < Thread.join threading.py:1112 < main train.py:9");
    another(&mut threads[3], "loader", Sleeping, "read@libc.so.6 < load data.py:7 < Thread.run threading.py:982");
    let mut different = Vec::new();
    for number in 0..30 {
        different.push(rank(number, Running, &format!("work{number} solver.py:{number} < main solver.py:99")));
    }
    let cases: Vec<(&str, Vec<Seen>)> = vec![
        (
            "one rank never enters the collective",
            but(512, REDUCE, rank(303, Running, "forward model.py:12 < main train.py:139 < <module> train.py:150")),
        ),
        ("all are in it", ranks(16, Running, REDUCE)),
        ("one alone", ranks(1, Running, REDUCE)),
        (
            "gloo, and one sleeps",
            but(
                4,
                GLOO,
                rank_in(
                    0,
                    Sleeping,
                    "clock_nanosleep",
                    "clock_nanosleep@libc.so.6 < main train.py:7 < <module> train.py:9",
                ),
            ),
        ),
        ("recv without send", but(4, HALO, rank(2, Running, "relax halo.c:60 < main halo.c:90"))),
        ("opposite orders", opposite),
        (
            "a dead worker of a DataLoader",
            but(16, GLOO, killed(with_child(rank(3, Sleeping, LOADER), "python train.py", Zombie, ""))),
        ),
        (
            "a worker that computes",
            but(16, GLOO, with_child(rank(3, Sleeping, LOADER), "python train.py", Running, "__getitem__ data.py:8")),
        ),
        (
            "a child that is waited for",
            but(
                4,
                REDUCE,
                with_child(
                    python(1, "wait4@libc.so.6 < Popen._wait subprocess.py:2011"),
                    "sleep 1000",
                    Sleeping,
                    "clock_nanosleep@libc.so.6",
                ),
            ),
        ),
        (
            "a lock",
            but(
                4,
                REDUCE,
                python(1, "__futex_wait@libc.so.6 < PyThread_acquire_lock_timed@libpython3.11.so.1.0 < save ckpt.py:5"),
            ),
        ),
        (
            "input()",
            but(
                4,
                REDUCE,
                rank_in(
                    0,
                    Sleeping,
                    "read stdin",
                    "read@libc.so.6 < builtin_input@python3.11 < main train.py:3 < <module> train.py:5",
                ),
            ),
        ),
        ("a thread that is waited for", threads),
        (
            "a file server",
            but(
                4,
                REDUCE,
                rank_in(
                    2,
                    Uninterruptible,
                    "openat in request_wait_answer",
                    "open@libc.so.6 < load data.py:7 < main train.py:9",
                ),
            ),
        ),
        (
            "a loop",
            but(
                16,
                REDUCE,
                rank(5, Running, "poll_until_ready train.py:30 < main train.py:139 < <module> train.py:150"),
            ),
        ),
        (
            "the garbage collector",
            but(
                4,
                REDUCE,
                rank(
                    2,
                    Running,
                    "deduce_unreachable@python3.11 < gc_collect_main@python3.11 < build graph.py:80 < main train.py:10",
                ),
            ),
        ),
        (
            "a signal handler",
            but(
                4,
                HALO,
                rank(1, Sleeping, "pause@libc.so.6 < handler halo.c:9 < <signal> < relax halo.c:60 < main halo.c:90"),
            ),
        ),
        (
            "MPI_Finalize against Barrier",
            but(
                4,
                &REDUCE.replace("PMPI_Allreduce", "PMPI_Barrier").replace("Comm.allreduce", "Comm.Barrier"),
                gone(rank(1, Running, finalize)),
            ),
        ),
        (
            "exit handlers",
            but(
                4,
                HALO,
                rank(1, Sleeping, "pause@libc.so.6 < flush cache.c:8 < __run_exit_handlers@libc.so.6 < exit@libc.so.6"),
            ),
        ),
        (
            "std::terminate",
            but(
                4,
                HALO,
                rank(
                    1,
                    Sleeping,
                    "pause@libc.so.6 < stuck a.cpp:20 < __cxxabiv1::__terminate@libstdc++.so.6 < std::terminate@libstdc++.so.6 < __cxa_throw@libstdc++.so.6 < run a.cpp:11 < main a.cpp:25",
                ),
            ),
        ),
        ("a debugger", but(4, HALO, rank(1, Stopped, "relax halo.c:60 < main halo.c:90"))),
        (
            "without symbols",
            but(
                4,
                "sched_yield@libc.so.6 < 0x9a1@libmpi.so.12 < PMPI_Recv@libmpi.so.12 < 0x1f40@solver < main@solver",
                rank(1, Running, "0x2f40@solver < main@solver"),
            ),
        ),
        ("not seen", but(4, HALO, unseen(2, "ptrace_scope is 3: nobody may look into processes"))),
        ("a rank that runs and was not read", {
            let mut seen = but(4, HALO, rank(2, Running, "relax halo.c:60 < main halo.c:90"));
            seen[0] = rank(0, Running, "");
            seen[0].stack.unseen = Some("strace (pid 7) traces it".to_owned());
            seen
        }),
        ("all are traced", {
            let mut seen = ranks(4, Traced, "");
            seen[3] = rank(3, Running, "");
            seen.iter_mut().for_each(|seen| seen.stack.unseen = Some("gdb (pid 7) traces it".to_owned()));
            seen
        }),
        ("one is traced, in a system call", {
            let mut seen = but(4, HALO, rank_in(2, Sleeping, "clock_nanosleep", ""));
            seen[2].stack.unseen = Some("gdb (pid 7) traces it".to_owned());
            seen
        }),
        ("a node is silent", ranks(4, Running, HALO)),
        ("each elsewhere", different),
    ];
    let mut text = String::new();
    for (name, seen) in cases {
        writeln!(text, "== {name}").expect("a string");
        let silent = if name == "a node is silent" { vec!["node07".to_owned()] } else { Vec::new() };
        for line in fold(&seen, &silent).lines(110, 20) {
            writeln!(text, "{}", line.trim_end()).expect("a string");
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "the time is told, and not judged")]
fn ten_thousand_ranks_are_folded_at_once() {
    let places = [REDUCE, HALO, LOADER, GLOO];
    let seen: Vec<Seen> = (0..10_000u32)
        .map(|number| match number {
            7777 => rank(number, Running, "forward model.py:12 < main train.py:139"),
            // Some are at places that nobody shares.
            _ if number % 20 == 3 => rank(number, Running, &REDUCE.replace(":120", &format!(":{number}"))),
            _ => rank(number, Running, places[0]),
        })
        .collect();
    let start = Instant::now();
    let table = fold(&seen, &[]);
    let folded = start.elapsed();
    let lines = table.lines(120, 20);
    println!("10,000 ranks: folded in {folded:?}, printed in {:?}", start.elapsed() - folded);
    assert_eq!(table.rows[0].count(), 9499);
    assert_eq!(table.odd.len(), 1);
    assert_eq!(table.odd[0].ranks.to_string(), "7777");
    assert!(lines.len() < 20, "{lines:#?}");
    assert_eq!(table.rows.len() + table.rows_left_out as usize, 502);
    let size = serde_json::to_vec(&table).expect("a table is JSON").len();
    assert!(size < 1 << 20, "{size} bytes");

    // Ranks that each are at a place of their own are the worst.
    let seen: Vec<Seen> = (0..10_000u32)
        .map(|number| rank(number, Running, &format!("work{number} a.py:3 < {}", places[number as usize % 4])))
        .collect();
    let start = Instant::now();
    let table = fold(&seen, &[]);
    println!("10,000 places: folded in {:?}", start.elapsed());
    let size = serde_json::to_vec(&table).expect("a table is JSON").len();
    assert!(table.rows.len() == KEPT && size < 1 << 20, "{size} bytes");
}

/// Where a rank may be.
const PLACES: [(ThreadState, &str); 9] = [
    (Running, REDUCE),
    (Sleeping, GLOO),
    (Running, HALO),
    (Sleeping, LOADER),
    (Running, "forward model.py:12 < main train.py:139"),
    (Sleeping, "clock_nanosleep@libc.so.6 < main train.py:7"),
    (Running, "0x9a1@libmpi.so.12 < PMPI_Finalize@libmpi.so.12 < main halo.c:99"),
    (Stopped, HALO),
    (Sleeping, ""),
];

fn job(places: &[usize]) -> Vec<Seen> {
    let places = places.iter().zip(0..);
    places.map(|(place, number)| rank(number, PLACES[*place].0, PLACES[*place].1)).collect()
}

proptest! {
    #[test]
    fn each_rank_is_in_one_row_or_not_seen(places in proptest::collection::vec(0..PLACES.len(), 0..80)) {
        let seen = job(&places);
        let table = fold(&seen, &[]);
        let mut all: Vec<Rank> = table.rows.iter().flat_map(|row| row.ranks.iter()).collect();
        all.extend(table.unseen.iter().flat_map(|unseen| unseen.ranks.iter()));
        all.sort_unstable();
        prop_assert_eq!(all, seen.iter().map(|seen| seen.rank).collect::<Vec<_>>());
        prop_assert!(table.rows.is_sorted_by_key(|row| std::cmp::Reverse(row.count())));
        // Ranks are in one row if and only if they are at one place.
        for row in &table.rows {
            let mut at: Vec<usize> = row.ranks.iter().map(|rank| places[rank.number() as usize]).collect();
            at.dedup();
            prop_assert_eq!(at.len(), 1);
        }
        let text = serde_json::to_string(&table).expect("a table is JSON");
        prop_assert_eq!(serde_json::from_str::<Table>(&text).expect("what was written"), table);
    }

    #[test]
    fn nobody_is_odd_for_whom_nobody_waits(places in proptest::collection::vec(0..PLACES.len(), 0..40)) {
        let seen = job(&places);
        let table = fold(&seen, &[]);
        let waiters: usize = table.rows.iter().filter(|row| row.place.wait.is_for_others()).map(Row::count).sum();
        prop_assert!(waiters > 0 || table.odd.is_empty());
        let odd: Vec<Rank> = table.odd.iter().flat_map(|odd| odd.ranks.iter()).collect();
        let mut once = odd.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), odd.len(), "one is named twice");
        if table.remark.as_ref().is_some_and(|remark| remark.starts_with("all alike")) {
            prop_assert!(table.unseen.is_empty() && odd.is_empty());
        }
        // Whoever waits for no other rank is named if somebody waits, and nobody else then.
        let free: Vec<Rank> = table.rows.iter().filter(|row| !row.place.wait.is_for_others()).flat_map(|row| row.ranks.iter()).collect();
        if waiters > 0 && !free.is_empty() {
            let mut free = free;
            free.sort_unstable();
            prop_assert_eq!(once, free);
        } else if !odd.is_empty() {
            prop_assert!(odd.len() * 2 < seen.len(), "the others are the larger part");
        }
    }

    #[test]
    fn no_table_is_longer_or_wider_than_a_screen(
        places in proptest::collection::vec((0..PLACES.len(), 0u32..40), 0..80),
        width in 60usize..200,
        most in 10usize..30,
    ) {
        let seen: Vec<Seen> = places.iter().zip(0..).map(|((place, line), number)| {
            let text = format!("f{line} a.py:{line} < {}", PLACES[*place].1);
            rank(number, PLACES[*place].0, text.trim_end_matches(" < "))
        }).collect();
        let table = fold(&seen, &[]);
        let lines = table.lines(width, most);
        prop_assert!(lines.len() <= most, "{lines:#?}");
        let is_row = |line: &&String| line.contains("  f") && !line.starts_with("odd");
        let rows = lines.iter().filter(is_row);
        prop_assert!(rows.clone().all(|line| line.chars().count() <= width), "{lines:#?}");
        for seen in &seen {
            prop_assert!(seen.lines().len() < 64);
        }
    }
}

#[test]
fn a_rank_is_shown_with_its_threads_and_processes() {
    let mut seen = rank_in(3, Sleeping, "poll", LOADER);
    another(
        &mut seen,
        "pt_gloo_runloop",
        Sleeping,
        "pthread_cond_wait@libc.so.6 < c10d::ProcessGroupGloo::runLoop@libtorch_cpu.so",
    );
    seen.stack.threads[1].is_idle = true;
    another(&mut seen, "saver", Running, "write_all ckpt.py:12 < save ckpt.py:30 < Thread.run threading.py:982");
    seen.stack.threads[2].holds_gil = true;
    for number in 0..10 {
        child(&mut seen, &format!("worker {number}"), Sleeping, "read@libc.so.6 < recv queue.py:7");
    }
    seen.stack.others[2].pid = Pid(99);
    insta::assert_snapshot!(seen.lines().join("\n"));
}

/// What the ranks do, and who is odd.
fn odd_of(seen: &[Seen]) -> Vec<String> {
    let table = fold(seen, &[]);
    table.odd.into_iter().map(|odd| odd.text).chain(table.remark).collect()
}

#[test]
fn outside_of_mpi_the_rank_that_does_not_wait_as_most_do_is_named_with_a_doubt() {
    let recv = "recv@libc.so.6 < ask ranks.py:6";
    let ask = |number| rank_in(number, Sleeping, "recvfrom socket:[7]", recv);
    let lock = |number| rank_in(number, Sleeping, "futex", "0x1@libc.so.6 < take a.c:3");
    let computes = |number| rank(number, Running, "search main.py:4");
    let sleeps = |number| rank_in(number, Sleeping, "clock_nanosleep", "clock_nanosleep@libc.so.6 < nap a.c:7");
    let perhaps = "the others wait for a file, a pipe, a socket or a signal, perhaps for this rank";
    assert_eq!(odd_of(&[ask(0), ask(1), computes(2)]), [format!("rank 2 on node00: computes; {perhaps}")]);
    assert_eq!(odd_of(&[ask(0), sleeps(1)]), [format!("rank 1 on node00: sleeps; {perhaps}")]);
    assert_eq!(odd_of(&[ask(0), lock(1), ask(2)]), [format!("rank 1 on node00: waits for a lock; {perhaps}")]);
    let of_lock = "rank 0 on node00: sleeps; the others wait for a lock, perhaps for this rank";
    assert_eq!(odd_of(&[sleeps(0), lock(1), lock(2)]), [of_lock]);
    // One that waits beside ranks that compute, and two that wait for something else, say nothing.
    assert_eq!(odd_of(&[ask(0), computes(1), computes(2)]), [""; 0]);
    assert_eq!(odd_of(&[ask(0), lock(1)]), [""; 0]);
}

#[test]
fn ranks_whose_tasks_are_not_seen_are_not_said_to_be_alike() {
    let parked = "runtime.futex < runtime.stopm < runtime.findRunnable < runtime.schedule";
    let seen: Vec<Seen> = (0..3).map(|number| rank_in(number, Sleeping, "futex", parked)).collect();
    let told = odd_of(&seen);
    assert!(told[0].starts_with("all threads alike; goroutines"), "{told:?}");
}

#[test]
fn calls_of_mpi_are_known_by_each_of_their_names() {
    let wait = |text: &str| {
        let seen = rank(0, Running, &format!("0x21f358@libmpi.so.12 < {text} < main halo.c:9"));
        place_of(&seen.stack).expect("a place").wait
    };
    let message = |call: &str| Wait::Message(call.to_owned());
    assert_eq!(wait("PMPI_Waitall@libmpi.so.12"), message("MPI_Waitall"));
    assert_eq!(wait("PMPI_Win_lock@libmpi.so.12"), message("MPI_Win_lock"));
    assert_eq!(wait("MPI_Send@libmpi.so.12"), Wait::Taker("MPI_Send".to_owned()));
    assert_eq!(wait("MPI_Win_get_attr@libmpi.so.12"), Wait::Nothing);
    // A library without names, below mpi4py.
    assert_eq!(wait("mpi4py.MPI.Comm.Recv"), message("MPI_Recv"));
    assert_eq!(wait("mpi4py.MPI.Request.Waitall"), message("MPI_Waitall"));
    assert_eq!(wait("mpi4py.MPI.Win.Lock"), message("MPI_Win_lock"));
    assert_eq!(wait("mpi4py.MPI.Comm.Ssend"), Wait::Taker("MPI_Ssend".to_owned()));
    assert_eq!(wait("mpi4py.MPI.Comm.Get_attr"), Wait::Nothing);
    // Fortran's names.
    assert_eq!(wait("mpi_barrier_@libmpi_mpifh.so.40"), Wait::Collective("MPI_Barrier".to_owned()));
    assert_eq!(wait("MPI_BARRIER@libmpi_mpifh.so.40"), Wait::Collective("MPI_Barrier".to_owned()));
    assert_eq!(wait("PMPI_RECV@libmpi_mpifh.so.40"), message("MPI_Recv"));
    assert_eq!(wait("MPI_WIN_LOCK@libmpi_mpifh.so.40"), message("MPI_Win_lock"));
    // A call that left no frame, in a library without names.
    assert_eq!(wait("0x22f000@libmpi.so.12"), message("MPI"));
}

#[test]
fn a_futex_is_a_lock_or_the_end_of_a_thread_however_it_is_reached() {
    let wait = |kernel: &str, text: &str| place_of(&rank_in(0, Sleeping, kernel, text).stack).expect("a place").wait;
    assert_eq!(wait("futex", "0x85f16@libc.so.6 < 0x90d8f@libc.so.6 < take main.c:2"), Wait::Lock);
    assert_eq!(
        wait("futex", "syscall@libc.so.6 < std::sys::sync::mutex::futex::Mutex::lock_contended a.rs:9"),
        Wait::Lock
    );
    assert_eq!(
        wait("futex for the end of thread 4711", "0x85f16@libc.so.6 < 0x8ace2@libc.so.6 < main main.c:2"),
        Wait::Thread
    );
    assert_eq!(wait("semop", "semop@libc.so.6 < take main.c:2"), Wait::Lock);
    let of_go = "runtime/internal/syscall.Syscall6 < syscall.Syscall < main.wait main.go:12";
    assert_eq!(wait("flock /data/lock", of_go), Wait::Lock);
    assert_eq!(wait("waitid", of_go), Wait::Process);
    assert_eq!(wait("read pipe:[7]", of_go), Wait::Event);
    assert_eq!(wait("futex", "futex@libc.so.6 < Thread.join threading.py:1112 < main train.py:9"), Wait::Thread);
    let parked =
        "runtime.futex < runtime.notesleep < runtime.mPark < runtime.stopm < runtime.findRunnable < runtime.schedule";
    assert_eq!(wait("futex", parked), Wait::Event);
    assert_eq!(
        wait("epoll_pwait until a time", "0x1@a < runtime.netpoll < runtime.findRunnable < runtime.schedule"),
        Wait::Time
    );
    assert_eq!(wait("select without files", "select@libc.so.6 < Perl_pp_sselect@perl < main"), Wait::Time);
}

#[test]
fn ranks_whose_other_threads_differ_are_not_called_alike() {
    let with = |number: u32, thread: &str| {
        let mut seen =
            rank_in(number, Sleeping, "futex for the end of thread 7", "pthread_join@libc.so.6 < main a.c:9");
        another(&mut seen, "worker", Sleeping, thread);
        seen
    };
    let (locked, reads) = ("pthread_mutex_lock@libc.so.6 < move a.c:3", "read@libc.so.6 < serve a.c:5");
    let remark = |seen: &[Seen]| fold(seen, &[]).remark.unwrap_or_default();
    assert_eq!(remark(&[with(0, locked), with(1, locked)]), "all alike");
    let differ = "the threads shown are alike, and others differ from rank to rank: --rank shows all threads";
    assert_eq!(remark(&[with(0, reads), with(1, locked), with(2, reads)]), differ);
}

#[test]
fn a_thread_that_computes_is_shown_where_the_main_one_waits_for_it() {
    let main = |text: &str| {
        let mut seen = rank_in(0, Sleeping, "futex for the end of thread 7", text);
        another(&mut seen, "C2 CompilerThre", Sleeping, "0x1@libjvm.so");
        another(&mut seen, "pool-1", Running, "0x4b8a@generated code < 0x4c01@generated code < JavaMain@libjli.so");
        seen.stack.threads[2].run_us = 9_000_000;
        place_of(&seen.stack).expect("a place")
    };
    let found = main("pthread_join@libc.so.6 < CallJavaMainInNewThread@libjli.so");
    assert_eq!((found.wait, found.thread.as_deref()), (Wait::Nothing, Some("pool-1")));
    let names: Vec<&str> = found.calls.iter().map(|frame| frame.function.as_str()).collect();
    assert_eq!(names, ["generated code", "JavaMain"], "addresses differ from process to process");
    // The first thread of a program in Java waits for the one that runs it.
    let mut seen = rank_in(0, Sleeping, "futex for the end of thread 7", "pthread_join < CallJavaMainInNewThread");
    another(&mut seen, "java", Sleeping, "poll@libc.so.6 < NET_Poll@libnet.so < JavaMain@libjli.so");
    let found = place_of(&seen.stack).expect("a place");
    assert_eq!((found.wait, found.thread), (Wait::Event, None));
}
