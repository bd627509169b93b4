//! `rankrun web`: the view of `rankrun top` in a browser, served on loopback (docs/web.md).
//!
//! * `gate.rs`: who may ask. `routes.rs`: what a path asks for. `picture.rs`: what is shown of a job, as JSON. `pieces.rs`: output as text. Pure.
//! * `watched.rs`: the connections to one job. `kept.rs`: what is kept of its output and its attempts. `answer.rs`: the answer to a request.
//! * `serve.rs`: connections and HTTP. `run.rs`: the command.
//! * `page/`: the page. It decides nothing: what is odd, in which order ranks are and what is said of each is in the answers.
//!
//! The server contacts a job only for a request of the page, and the page requests only what it shows.

mod answer;
mod gate;
mod kept;
mod picture;
mod pieces;
mod routes;
mod run;
mod serve;
mod watched;

pub(crate) use run::run;
