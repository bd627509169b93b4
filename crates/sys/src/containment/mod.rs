//! Containment of processes: cgroup v2.

pub mod cgroup;
