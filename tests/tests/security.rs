//! What another user of the machine, or a file that happens to lie about, can make rankrun do: nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rankrun_tests::Job;

/// Writes an executable script that leaves the file `ran` beside itself.
fn plant_program(directory: &Path, name: &str) {
    let program = directory.join(name);
    let marker = directory.join("ran");
    fs::write(&program, format!("#!/bin/sh\necho {name} >> '{}'\n", marker.display())).expect("the directory is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file is ours");
}

/// Writes a Python module that leaves the file `ran` beside itself when it is imported.
fn plant_module(directory: &Path, name: &str) {
    let marker = directory.join("ran");
    let text = format!("open({:?}, 'a').write('{name}\\n')\n", marker.display().to_string());
    fs::write(directory.join(format!("{name}.py")), text).expect("the directory is ours");
}

#[test]
fn check_runs_nothing_of_the_working_directory() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    for module in ["csv", "json", "email", "zipfile", "textwrap", "sitecustomize", "usercustomize", "startup"] {
        plant_module(directory.path(), module);
    }
    for program in ["python3", "python", "cat"] {
        plant_program(directory.path(), program);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    for (name, value) in [
        ("PATH", format!(".:{path}")),
        ("PATH", format!(":{path}")),
        ("PYTHONPATH", ".".to_owned()),
        ("PYTHONPATH", ":".to_owned()),
        ("PYTHONSTARTUP", "startup.py".to_owned()),
    ] {
        let ended = Job::new(["check"]).current_dir(directory.path()).env(name, &value).run();
        let ran = fs::read_to_string(directory.path().join("ran")).unwrap_or_default();
        assert_eq!(ran, "", "{name}={value}: these ran: {ran}");
        assert!(ended.stdout_text().contains("python"), "{}", ended.stdout_text());
    }
}
