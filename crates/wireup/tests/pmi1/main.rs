//! The PMI-1 server as its clients and its driver meet it.

mod commands;
mod conversations;
mod epochs;
mod hostile;
mod nodes;
mod properties;
mod world;
