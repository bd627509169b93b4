//! One process, from look to look.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rankrun_core::stacks::ThreadState;
use rankrun_core::stacks::profile::{Activity, Cost, Gathering, MAIN, Sample, Samples};
use rankrun_sys::proc;
use rankrun_sys::trace::{self, NotHeld};

use super::Look;
use super::files::{Files, Schedule, Stat};
use super::subject::{Named, Raw, call_text};
use crate::Bounds;
use crate::capture::{self, Copied, Source, Thread};
use crate::images::{Images, file_name};
use crate::kernel;
use crate::look::command;
use crate::maps::Mappings;
use crate::memory::Memory;
use crate::merge;
use crate::native::{Modules, Stacks};
use crate::python::{self, Codes, Found, Runtime};
use crate::reason;

/// How long a thread may take to stop. One that has no CPU stops when it gets one.
const HOLD: Duration = Duration::from_millis(200);
/// How long a thread takes at most to stop if it has a CPU. One that was only pushed aside by this process stops in that time, too.
const QUEUED: Duration = Duration::from_micros(400);
/// How old what is known of mappings and of code objects may be. Code that is loaded meanwhile is seen at once.
const MAX_AGE: Duration = Duration::from_secs(5);
/// The same of threads, and of mappings in which a thread is at no known code.
const MIN_AGE: Duration = Duration::from_millis(500);
/// Stacks that are kept with their names. Beyond them they are resolved anew.
const MAX_STACKS: usize = 16_384;
/// Other threads than the main one that are looked at.
const MAX_THREADS: usize = 64;
/// The CPU time of the other threads, in microseconds, from which on they are looked at.
const MIN_RUN_US: u64 = 10_000;

/// A thread.
#[derive(Debug)]
struct Watched {
    tid: i32,
    name: String,
    files: Files,
    schedule: Schedule,
    /// Where it was when it was last read.
    last: Option<Rc<Named>>,
    /// What identifies it to an interpreter that does not know thread ids: seen at a stop.
    tls: u64,
}

/// A process.
pub(super) struct Process {
    pid: i32,
    maps: Mappings,
    modules: Modules,
    maps_read: Option<Instant>,
    python: Option<Box<Runtime>>,
    codes: Option<Codes>,
    main: Watched,
    others: Vec<Watched>,
    others_read: Option<Instant>,
    used: Option<Cost>,
    /// What tells the program apart from one that was there before an exec.
    program: Option<[u64; 2]>,
    /// CPU time of the other threads since they were last looked at.
    others_ran_us: u64,
    looked: Option<Instant>,
    stacks: HashMap<Raw, Rc<Named>>,
    gathering: Gathering,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Why a thread was not read.
enum Missed {
    Pending,
    Gone,
    /// The kernel does not permit it.
    Refused,
    Late,
}

impl Process {
    pub(super) fn new(pid: i32) -> Process {
        Process {
            pid,
            maps: Mappings::default(),
            modules: Modules::default(),
            maps_read: None,
            python: None,
            codes: None,
            main: Watched {
                tid: pid,
                name: MAIN.to_owned(),
                files: Files::of_process(pid),
                schedule: Schedule::default(),
                last: None,
                tls: 0,
            },
            others: Vec::new(),
            others_read: None,
            used: None,
            program: None,
            others_ran_us: 0,
            looked: None,
            stacks: HashMap::new(),
            gathering: Gathering::default(),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn take(&mut self) -> Samples {
        self.gathering.take()
    }

    /// These are of another process, which played the rank before.
    pub(super) fn keep(&mut self, samples: &Samples) {
        self.gathering.merge(samples);
        self.gathering.about().command.clear();
    }

    pub(super) fn look(&mut self, images: &mut Images, bounds: &Bounds, now: Instant, window: usize) -> Look {
        let Some(Stat { state, used, program }) = self.main.files.stat() else { return Look::Ended };
        if state == ThreadState::Zombie {
            return Look::Ended;
        }
        if self.program.replace(program).is_some_and(|before| before != program) {
            self.forget_program();
        }
        let schedule = self.main.files.schedule().unwrap_or_default();
        let (cost, main_ran_us) = self.cost(used, schedule);
        let about = self.gathering.about();
        about.looks += 1;
        if let Some(before) = self.looked.replace(now) {
            about.time_us += now.saturating_duration_since(before).as_micros() as u64;
        }
        if about.command.is_empty() {
            about.command = command(self.pid);
        }
        self.renew(images, bounds, now);
        let activity = Activity::of(state);
        let of_main = match self.read(images, bounds, None, activity, schedule) {
            Ok(stack) => stack,
            Err(Missed::Pending) => return Look::Pending,
            // A program that replaces itself is there again in a moment.
            Err(Missed::Gone) if self.has_ended() => return Look::Ended,
            Err(missed) => self.not_seen(&missed, activity),
        };
        self.others_ran_us += (cost.user_us + cost.system_us).saturating_sub(main_ran_us);
        let mut lead = None;
        let waits = of_main.meaning.is_for_thread;
        let mut running = Vec::new();
        if waits || self.others_ran_us >= MIN_RUN_US {
            self.others_ran_us = 0;
            match self.look_at_others(images, bounds, now, waits) {
                Ok(found) => running = found,
                Err(()) => return Look::Pending,
            }
            lead = if waits { lead_of(&running) } else { None };
        }
        let sample = |stack: &Rc<Named>, thread, is_lead| {
            let (activity, cost) = (stack.activity, if is_lead { cost } else { Cost::default() });
            (thread, Rc::clone(stack), activity, is_lead, cost)
        };
        let mut samples = vec![sample(&of_main, MAIN.to_owned(), lead.is_none())];
        for (index, (name, stack)) in running.iter().enumerate() {
            let is_lead = lead == Some(index);
            // One that waits is counted only where it says what the rank waits for.
            if is_lead || stack.activity != Activity::Sleeping {
                samples.push(sample(stack, name.clone(), is_lead));
            }
        }
        for (thread, stack, activity, is_lead, cost) in &samples {
            self.gathering.add(Sample {
                thread,
                frames: &stack.frames,
                activity: *activity,
                call: stack.call.as_deref(),
                is_lead: *is_lead,
                window,
                cost: *cost,
            });
        }
        Look::Seen
    }

    fn has_ended(&self) -> bool {
        self.main.files.stat().is_none_or(|stat| stat.state == ThreadState::Zombie)
    }

    /// The process runs another program: nothing holds that is known of the one before.
    fn forget_program(&mut self) {
        self.maps = Mappings::default();
        self.modules = Modules::default();
        (self.maps_read, self.others_read) = (None, None);
        (self.python, self.codes) = (None, None);
        (self.main.last, self.main.tls) = (None, 0);
        self.others.clear();
        self.stacks.clear();
        self.gathering.about().command.clear();
    }

    /// What the process has used since the look before, and the CPU time of its main thread.
    fn cost(&mut self, used: Cost, schedule: Schedule) -> (Cost, u64) {
        let Some(before) = self.used.replace(used) else { return (Cost::default(), 0) };
        let last = self.main.schedule;
        let cost = Cost {
            faults: used.faults.saturating_sub(before.faults),
            major_faults: used.major_faults.saturating_sub(before.major_faults),
            user_us: used.user_us.saturating_sub(before.user_us),
            system_us: used.system_us.saturating_sub(before.system_us),
            delay_us: schedule.delayed.saturating_sub(last.delayed) / 1000,
        };
        (cost, schedule.ran.saturating_sub(last.ran) / 1000)
    }

    /// Reads again what may have changed.
    fn renew(&mut self, images: &mut Images, bounds: &Bounds, now: Instant) {
        let is_old = |read: Option<Instant>| read.is_none_or(|read| now.saturating_duration_since(read) >= MAX_AGE);
        let is_running = match &mut self.python {
            Some(python) => python.refresh(self.pid),
            None => false,
        };
        if is_old(self.maps_read) {
            self.maps_read = Some(now);
            let changed = self.read_maps();
            if changed || !is_running {
                self.find_python(images, bounds);
            }
            // A code object may be where another one was.
            if let (Some(python), true) = (&self.python, self.codes.is_some()) {
                self.codes = Some(Codes::new(Memory { pid: self.pid }, python.layout.clone()));
                self.stacks.clear();
            }
        } else if !is_running {
            self.python = None;
        }
    }

    /// Returns whether other code is mapped than before.
    fn read_maps(&mut self) -> bool {
        let Ok(text) = rankrun_sys::kernel::text(format!("/proc/{}/maps", self.pid)) else { return false };
        let maps = Mappings::parse(&text);
        let code = |maps: &Mappings| -> Vec<(u64, u64, String)> {
            let code = maps.0.iter().filter(|mapping| mapping.is_executable);
            code.map(|mapping| (mapping.start, mapping.end, mapping.path.clone())).collect()
        };
        let changed = code(&maps) != code(&self.maps);
        if changed {
            self.modules = Modules::default();
            self.stacks.clear();
        }
        self.maps = maps;
        changed
    }

    fn find_python(&mut self, images: &mut Images, bounds: &Bounds) {
        let program =
            proc::executable(self.pid).map(|path| file_name(&path.to_string_lossy()).to_owned()).unwrap_or_default();
        let memory = Memory { pid: self.pid };
        self.python = match python::find(memory, &self.maps, images, &program, bounds.depth) {
            Found::Running(python) => Some(python),
            Found::None | Found::Gone | Found::Unknown(_) => None,
        };
        self.codes = self.python.as_ref().map(|python| Codes::new(memory, python.layout.clone()));
    }

    /// Where a thread is: the main one, or one of the others.
    fn read(
        &mut self,
        images: &mut Images,
        bounds: &Bounds,
        other: Option<usize>,
        activity: Activity,
        schedule: Schedule,
    ) -> Result<Rc<Named>, Missed> {
        let thread = match other {
            Some(index) => &mut self.others[index],
            None => &mut self.main,
        };
        let has_run = std::mem::replace(&mut thread.schedule, schedule).ran != schedule.ran;
        if let Some(last) = thread.last.as_ref().filter(|last| !has_run && last.activity == activity)
            && !matches!(activity, Activity::Running | Activity::Queued)
        {
            return Ok(Rc::clone(last));
        }
        let tid = thread.tid;
        let (copied, activity, call) = self.copy(bounds, tid, other, activity)?;
        let stack = self.resolve(images, bounds, (tid, other), &copied, (activity, call));
        let thread = match other {
            Some(index) => &mut self.others[index],
            None => &mut self.main,
        };
        thread.last = Some(Rc::clone(&stack));
        if copied.registers.tls != 0 {
            thread.tls = copied.registers.tls;
        }
        Ok(stack)
    }

    /// Copies registers and stack of a thread; stops it only if it runs.
    fn copy(
        &mut self,
        bounds: &Bounds,
        tid: i32,
        other: Option<usize>,
        activity: Activity,
    ) -> Result<(Copied, Activity, Option<String>), Missed> {
        let files = other.map_or(&self.main.files, |index| &self.others[index].files);
        let tls = other.map_or(self.main.tls, |index| self.others[index].tls);
        let memory = Memory { pid: self.pid };
        let until = Instant::now() + HOLD;
        let source = Source { memory, maps: &self.maps, runtime: None, bounds, until };
        // Where the return address is in a register, only a stop shows it.
        let is_readable_asleep = cfg!(target_arch = "x86_64");
        let mut fragile = false;
        if matches!(activity, Activity::Sleeping | Activity::Disk)
            && let Some(call) = files.call()
        {
            fragile = call.is_fragile();
            if is_readable_asleep || fragile || activity == Activity::Disk {
                let state = ThreadState::Sleeping;
                let thread = Thread { tid, name: String::new(), state, run_us: 0, call: Some(call), wchan: None };
                let frames = self.python.as_ref().and_then(|python| python.raw_frames(tid, tls));
                if let Some(copied) = capture::copy_asleep(source, &thread) {
                    return Ok((Copied { python: frames, ..copied }, activity, call_text(tid, call)));
                }
            }
        }
        match activity {
            Activity::Other => return Ok((Copied::default(), activity, None)),
            Activity::Disk => {
                return Ok((Copied::default(), activity, files.call().and_then(|call| call_text(tid, call))));
            }
            Activity::Sleeping if fragile => return Err(Missed::Late),
            Activity::Sleeping | Activity::Running | Activity::Queued => {}
        }
        let held = match trace::hold(tid, HOLD) {
            Ok(held) => held,
            Err(NotHeld::StillPending) => return Err(Missed::Pending),
            Err(NotHeld::Gone) => return Err(Missed::Gone),
            Err(NotHeld::Refused(_)) => return Err(Missed::Refused),
        };
        let registers = held.registers().map_err(|_| Missed::Gone)?;
        held.restart_call(kernel::fails_after_stop).map_err(|_| Missed::Gone)?;
        let stack = capture::copy_stack(source, registers.sp);
        let frames = self.python.as_ref().and_then(|python| python.raw_frames(tid, registers.tls));
        let still = held.still_for();
        let stopped = held.release();
        let stops = &mut self.gathering.about().stops;
        stops.count += 1;
        stops.total_us += still.as_micros() as u64;
        stops.longest_us = stops.longest_us.max(stopped.as_micros() as u64);
        let copied = Copied { registers, lacks_fp: false, stack, python: frames, stopped };
        let activity = if stopped.saturating_sub(still) < QUEUED { Activity::Running } else { Activity::Queued };
        Ok((copied, activity, None))
    }

    /// Gives a stack its names.
    fn resolve(
        &mut self,
        images: &mut Images,
        bounds: &Bounds,
        (tid, other): (i32, Option<usize>),
        copied: &Copied,
        (activity, call): (Activity, Option<String>),
    ) -> Rc<Named> {
        if self.maps.code_at(copied.registers.pc).is_none() && copied.registers.pc != 0 {
            // It has loaded code since: what is older than a moment is read again.
            let is_old = self.maps_read.is_none_or(|read| read.elapsed() >= MIN_AGE);
            if is_old {
                self.maps_read = Some(Instant::now());
                self.read_maps();
            }
        }
        let name = other.map_or(MAIN, |index| &self.others[index].name).to_owned();
        let memory = Memory { pid: self.pid };
        let until = Instant::now() + bounds.per_process;
        let mut modules = std::mem::take(&mut self.modules);
        modules.has_plain_python = !bounds.is_native_whole;
        let mut stacks = Stacks::with(memory, &self.maps, images, until, modules);
        let unwound = match copied.registers.pc {
            0 => crate::native::Unwound::default(),
            _ => stacks.unwind(copied, bounds.depth),
        };
        let raw = Raw { unwound, python: copied.python.clone(), activity, call };
        if let Some(known) = self.stacks.get(&raw) {
            let known = Rc::clone(known);
            self.modules = stacks.into_modules();
            return known;
        }
        stacks.learn([&raw.unwound].into_iter());
        let native = stacks.frames(&raw.unwound);
        let runs = match (&mut self.codes, &raw.python) {
            (Some(codes), Some(python)) => {
                let run = |run: &Vec<_>| run.iter().map(|frame| codes.frame(*frame)).collect();
                python.runs.iter().map(run).collect()
            }
            _ => Vec::new(),
        };
        let frames = merge::merge(&native, &runs, raw.unwound.is_cut, bounds.is_native_whole);
        self.modules = stacks.into_modules();
        let named = Rc::new(Named::new(frames, activity, raw.call.clone(), tid == self.pid, &name));
        if self.stacks.len() >= MAX_STACKS {
            self.stacks.clear();
        }
        self.stacks.insert(raw, Rc::clone(&named));
        named
    }

    /// A sample of a thread that could not be read: its state is known all the same.
    fn not_seen(&mut self, missed: &Missed, activity: Activity) -> Rc<Named> {
        let about = self.gathering.about();
        about.missed += 1;
        about.unseen = match missed {
            Missed::Refused => Some(reason::of_refusal(self.pid)),
            _ => about.unseen.take(),
        };
        Rc::new(Named::new(Vec::new(), activity, None, true, MAIN))
    }

    /// The other threads that run; and if the main thread waits for one of them, those too that may be the one. `Err`: the calling thread
    /// must end.
    fn look_at_others(
        &mut self,
        images: &mut Images,
        bounds: &Bounds,
        now: Instant,
        waits: bool,
    ) -> Result<Vec<(String, Rc<Named>)>, ()> {
        if self.others_read.is_none_or(|read| now.saturating_duration_since(read) >= MIN_AGE) {
            self.others_read = Some(now);
            self.list_others();
        }
        let mut found = Vec::new();
        for index in 0..self.others.len() {
            let thread = &self.others[index];
            let Some(schedule) = thread.files.schedule() else { continue };
            let has_run = schedule.ran != thread.schedule.ran;
            if !has_run && !waits {
                continue;
            }
            let Some(stat) = thread.files.stat() else { continue };
            let activity = Activity::of(stat.state);
            if activity == Activity::Other || (activity == Activity::Sleeping && !waits) {
                continue;
            }
            match self.read(images, bounds, Some(index), activity, schedule) {
                Ok(stack) if !stack.is_idle => found.push((self.others[index].name.clone(), stack)),
                Ok(_) => {}
                Err(Missed::Pending) => return Err(()),
                Err(Missed::Gone | Missed::Refused | Missed::Late) => {}
            }
        }
        Ok(found)
    }

    fn list_others(&mut self) {
        let tids: Vec<i32> = capture::tids(self.pid).into_iter().skip(1).take(MAX_THREADS).collect();
        self.others.retain(|thread| tids.contains(&thread.tid));
        for tid in tids {
            if self.others.iter().any(|thread| thread.tid == tid) {
                continue;
            }
            let name = rankrun_sys::kernel::piece_text(format!("/proc/{}/task/{tid}/comm", self.pid));
            let files = Files::of_thread(self.pid, tid);
            let schedule = files.schedule().unwrap_or_default();
            let name = format!("thread {}", name.unwrap_or_default().trim_end());
            self.others.push(Watched { tid, name, files, schedule, last: None, tls: 0 });
        }
    }
}

/// The thread for which the main thread waits: one that runs, else one that waits for other ranks, else one that waits for a disk.
fn lead_of(found: &[(String, Rc<Named>)]) -> Option<usize> {
    let first = |is_it: &dyn Fn(&Named) -> bool| found.iter().position(|(_, stack)| is_it(stack));
    let runs = |stack: &Named| matches!(stack.activity, Activity::Running | Activity::Queued);
    first(&|stack| runs(stack) && !stack.frames.is_empty())
        .or_else(|| first(&|stack| stack.meaning.others.is_some()))
        .or_else(|| first(&|stack| stack.activity == Activity::Disk))
}
