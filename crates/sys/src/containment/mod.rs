//! What holds processes together: cgroup v2.

pub mod cgroup;
