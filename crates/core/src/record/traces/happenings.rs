//! The events of a gang as events of spans: their names and attributes.

use super::otlp::{Attribute, attribute};
use crate::evidence::MpiEvent;
use crate::gang::{Effect, Event};
use crate::grace::StopWhy;
use crate::ids::WorkerId;
use crate::status::signal_name;
use crate::testimony::{Exception, StuckIn, Testimony};

/// An event of the span of a rank, or where it has none of its attempt.
pub(super) struct Happening {
    pub(super) of: Option<WorkerId>,
    pub(super) name: &'static str,
    pub(super) attributes: Vec<Attribute>,
}

fn of(worker: WorkerId, name: &'static str, attributes: Vec<Attribute>) -> Option<Happening> {
    Some(Happening { of: Some(worker), name, attributes })
}

fn of_attempt(name: &'static str, attributes: Vec<Attribute>) -> Option<Happening> {
    Some(Happening { of: None, name, attributes })
}

/// What an event of the gang is in a trace. `None`: it begins or ends a span, or tells nothing.
pub(super) fn happening(event: &Event) -> Option<Happening> {
    match event {
        Event::Started { .. }
        | Event::SpawnFailed { .. }
        | Event::Signalled { .. }
        | Event::Ended { .. }
        | Event::Gone { .. }
        | Event::Again { .. }
        | Event::LastWords { .. }
        | Event::Tick => None,
        Event::Mpi { worker, event } => of_mpi(*worker, event),
        Event::Stopped { worker, signal } => {
            of(*worker, "rankrun.stopped", vec![attribute("rankrun.signal", signal_name(*signal))])
        }
        Event::NotReady { worker, after } => of(*worker, "rankrun.not_ready", vec![attribute("rankrun.after", *after)]),
        Event::Testimony { worker, testimony, .. } => of_testimony(*worker, testimony),
        Event::Stuck { worker, place, .. } => {
            let place = match place {
                StuckIn::Finalize => "finalize",
                StuckIn::ExitHandlers => "exit-handlers",
            };
            of(*worker, "rankrun.stuck", vec![attribute("rankrun.stuck.place", place)])
        }
        Event::OutOfMemory { worker, detail } => {
            of(*worker, "rankrun.out_of_memory", vec![attribute("rankrun.detail", &**detail)])
        }
        Event::CpuTime { worker, used, limit } => {
            let attributes = vec![attribute("rankrun.cpu_time", *used), attribute("rankrun.cpu_time.limit", *limit)];
            of(*worker, "rankrun.cpu_time_limit", attributes)
        }
        Event::HelperOutOfMemory { worker, pid, name, detail } => {
            let attributes = vec![
                attribute("process.pid", pid.0),
                attribute("process.executable.name", &**name),
                attribute("rankrun.detail", &**detail),
            ];
            of(*worker, "rankrun.helper_out_of_memory", attributes)
        }
        Event::OpenMpi { worker } => of(*worker, "rankrun.open_mpi_init_failed", Vec::new()),
        Event::Suspect { worker, exception: it, silent, .. } => {
            let mut attributes = exception(it);
            attributes.push(attribute("rankrun.silent", *silent));
            of(*worker, "rankrun.suspect", attributes)
        }
        Event::Hookless(worker, _) => of(*worker, "rankrun.no_python_hook", Vec::new()),
        Event::Missed { worker } => of(*worker, "rankrun.missed_in_init", Vec::new()),
        Event::Alone { alone, .. } => {
            of_attempt("rankrun.alone", vec![attribute("rankrun.libraries", alone.len() as u32)])
        }
        Event::Signal(signal) => {
            of_attempt("rankrun.signal_received", vec![attribute("rankrun.signal", signal_name(*signal))])
        }
        Event::Planned(stop) => of_attempt("rankrun.planned_stop", vec![attribute("rankrun.why", stop.headline())]),
        Event::StopRequest(request) => {
            of_attempt("rankrun.stop_requested", vec![attribute("rankrun.by", request.by.to_string())])
        }
        Event::RestartRequest => of_attempt("rankrun.restart_requested", Vec::new()),
        Event::Hang(hang) => {
            let mut attributes = vec![attribute("rankrun.silent", hang.silent)];
            if let Some(odd) = &hang.odd {
                attributes.push(attribute("rankrun.rank", odd.rank.number()));
                attributes.push(attribute("rankrun.detail", &*odd.text));
            }
            of_attempt("rankrun.stall", attributes)
        }
        Event::OutputGone => of_attempt("rankrun.output_gone", Vec::new()),
        Event::OutputFailed => of_attempt("rankrun.output_failed", Vec::new()),
        Event::LogsFailed { reason } => of_attempt("rankrun.logs_failed", vec![attribute("rankrun.detail", &**reason)]),
        Event::AgentLost => of_attempt("rankrun.agent_lost", Vec::new()),
        Event::GuardLost => of_attempt("rankrun.guard_lost", Vec::new()),
        Event::NodeLost { name, why, workers, .. } => {
            let attributes = vec![
                attribute("host.name", &**name),
                attribute("rankrun.detail", &**why),
                attribute("rankrun.ranks", workers.len() as u32),
            ];
            of_attempt("rankrun.node_lost", attributes)
        }
        Event::LossKnown { node, why } => {
            let attributes = vec![attribute("rankrun.node", node.0), attribute("rankrun.detail", &**why)];
            of_attempt("rankrun.node_loss_known", attributes)
        }
        Event::StoodStill { time } => of_attempt("rankrun.stood_still", vec![attribute("rankrun.after", *time)]),
        Event::WireUpLost { reason } => {
            of_attempt("rankrun.wire_up_lost", vec![attribute("rankrun.detail", &**reason)])
        }
    }
}

fn of_mpi(worker: WorkerId, event: &MpiEvent) -> Option<Happening> {
    match event {
        MpiEvent::Inited | MpiEvent::Finalized => None,
        MpiEvent::PassedBarrier => of(worker, "rankrun.mpi.barrier", Vec::new()),
        MpiEvent::Finalizing => of(worker, "rankrun.mpi.finalizing", Vec::new()),
        MpiEvent::Aborted { code, message } => of(worker, "rankrun.abort", aborted(*code, message.as_deref())),
        MpiEvent::Refused { call, detail } => {
            let mut attributes = vec![attribute("code.function.name", &**call)];
            attributes.extend(detail.as_deref().map(|detail| attribute("rankrun.detail", detail)));
            of(worker, "rankrun.mpi.refused", attributes)
        }
        MpiEvent::Malformed { reason } => {
            of(worker, "rankrun.mpi.malformed", vec![attribute("rankrun.detail", &**reason)])
        }
    }
}

fn of_testimony(worker: WorkerId, testimony: &Testimony) -> Option<Happening> {
    match testimony {
        // The name and the attributes are those of OpenTelemetry's conventions.
        Testimony::Uncaught(it) | Testimony::ErrorFile(it) => of(worker, "exception", exception(it)),
        Testimony::Exiting { code } => of(worker, "rankrun.exiting", vec![attribute("process.exit.code", *code)]),
        Testimony::Leaving { code } => of(worker, "rankrun.leaving", vec![attribute("process.exit.code", *code)]),
        Testimony::Aside { place, exception: it } => {
            let mut attributes = exception(it);
            attributes.push(attribute("rankrun.place", &**place));
            of(worker, "rankrun.exception_aside", attributes)
        }
        Testimony::Abort { code, message } => of(worker, "rankrun.abort", aborted(*code, message.as_deref())),
        Testimony::Note { text } => of(worker, "rankrun.note", vec![attribute("rankrun.message", &**text)]),
        Testimony::Progress => of(worker, "rankrun.progress", Vec::new()),
        Testimony::Ready => of(worker, "rankrun.ready", Vec::new()),
    }
}

fn aborted(code: i32, message: Option<&str>) -> Vec<Attribute> {
    let mut attributes = vec![attribute("rankrun.abort.code", code)];
    attributes.extend(message.map(|message| attribute("rankrun.message", message)));
    attributes
}

fn exception(it: &Exception) -> Vec<Attribute> {
    let texts =
        [("exception.type", &it.kind), ("exception.message", &it.message), ("exception.stacktrace", &it.traceback)];
    let given = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let mut attributes: Vec<Attribute> = given.map(|(key, text)| attribute(key, &**text)).collect();
    attributes.extend(it.file.as_deref().map(|file| attribute("code.file.path", file)));
    attributes.extend(it.line.map(|line| attribute("code.line.number", line)));
    attributes.extend(it.function.as_deref().map(|function| attribute("code.function.name", function)));
    attributes
}

/// A decision of the gang.
pub(super) fn decision(effect: Effect) -> (&'static str, Vec<Attribute>) {
    match effect {
        Effect::Stop(stop) => {
            let why = match stop.why {
                StopWhy::GangFailed => "a rank failed".to_owned(),
                StopWhy::Signal(signal) => signal_name(signal),
                StopWhy::OutputFailed => "output could not be written".to_owned(),
                StopWhy::Timeout => "--timeout".to_owned(),
                StopWhy::Planned => "planned".to_owned(),
                StopWhy::Hang => "--stall".to_owned(),
                StopWhy::FrontLost => "rankrun is gone".to_owned(),
                StopWhy::GuardLost => "the guard is gone".to_owned(),
                StopWhy::WireUpLost => "the ranks cannot be connected".to_owned(),
                StopWhy::Over => "the job is over".to_owned(),
            };
            ("rankrun.stop", vec![attribute("rankrun.why", why), attribute("rankrun.grace", stop.grace)])
        }
        Effect::Kill => ("rankrun.kill", Vec::new()),
    }
}
