//! The command line: words as typed, and the resulting settings, each with its origin.

pub(crate) mod args;
pub(crate) mod binding;
pub(crate) mod choices;
pub(crate) mod config;
pub(crate) mod files;
pub(crate) mod frameworks;
pub(crate) mod habits;
pub(crate) mod hosts;
pub(crate) mod invocation;
pub(crate) mod joining;
pub(crate) mod keys;
pub(crate) mod leaving;
pub(crate) mod message;
pub(crate) mod planned;
pub(crate) mod restarting;
pub(crate) mod settings;
pub(crate) mod slips;
pub(crate) mod spelling;
pub(crate) mod stopping;
pub(crate) mod subcommands;
pub(crate) mod texts;
pub(crate) mod typography;
pub(crate) mod values;
pub(crate) mod words;
