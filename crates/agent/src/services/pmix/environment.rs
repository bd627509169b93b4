//! The environment of the PMIx host.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

use rankrun_core::{JobSpec, outer};

/// The environment of the host: the job's, without what an outer launcher said of itself.
pub(super) fn environment(spec: &JobSpec) -> Vec<CString> {
    let ours = [
        // Plain tables: nothing in shared memory, and the same for each version of a client.
        ("PMIX_MCA_gds", "hash"),
        ("PMIX_MCA_psec", "native"),
    ];
    let base = spec
        .base_env
        .iter()
        .filter(|(name, _)| !outer::is_outer_identity(name) && !ours.iter().any(|(ours, _)| name == ours));
    let base = base.map(|(name, value)| {
        let mut bytes = name.clone().into_vec();
        bytes.push(b'=');
        bytes.extend(value.clone().into_vec());
        bytes
    });
    let ours = ours.map(|(name, value)| format!("{name}={value}").into_bytes());
    base.chain(ours).filter_map(|bytes| CString::new(bytes).ok()).collect()
}
