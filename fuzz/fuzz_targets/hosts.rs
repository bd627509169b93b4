//! Lists and files of hosts from anywhere: `cargo +nightly fuzz run hosts`.
//!
//! Beside the absence of panics it is asserted that what is read is bounded, that names can be words of a command line, that
//! folded names are read back the same, and that a place is found for every rank that fits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rankrun_core::hosts::{
    MAX_HOSTS, Mapping, Slurm, Wanted, fold, lsf_counts, merge, parse_file, parse_list, parse_names, place, slurm_nodes,
};

fuzz_target!(|text: &str| {
    if let Ok(hosts) = parse_list(text) {
        assert!(hosts.len() <= MAX_HOSTS);
        for host in &hosts {
            assert!(!host.name.is_empty() && !host.name.starts_with('-') && !host.name.contains(char::is_whitespace));
            assert!(host.slots != Some(0));
        }
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(parse_names(&fold(&names)).expect("folded names are a list"), names);
    }
    if let Ok(file) = parse_file(text) {
        assert!(file.hosts.len() <= MAX_HOSTS);
        if let Ok(nodes) = merge(file.hosts) {
            for mapping in [Mapping::Block, Mapping::Cyclic] {
                let wanted = Wanted { ranks: Some(7), oversubscribe: true, mapping, per_node: None };
                if let Ok(homes) = place(&nodes, &[], &wanted) {
                    assert!(homes.len() == 7 && homes.iter().all(|home| *home < nodes.len()));
                }
            }
        }
    }
    let (list, counts) = text.split_once('\n').unwrap_or((text, ""));
    // Whether they are good does not matter here, only that they are read.
    let _ = slurm_nodes(&Slurm { node_list: list, tasks: Some(counts), ..Slurm::default() });
    let _ = lsf_counts(text);
});
