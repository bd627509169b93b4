//! What people read when something is wrong, where it takes the real binary to say so.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rankrun_tests::{Ended, Job, Tier, User, rankrun, shared_directory, skip};

/// What rankrun wrote to stderr, without what differs from machine to machine.
fn message(ended: &Ended) -> String {
    ended.stderr_text().replace(&shared_directory().display().to_string(), "[SHARED]")
}

#[test]
fn usage_errors_start_nothing_and_give_2() {
    for arguments in [&["-n", "0", "true"][..], &["-n", "-1", "true"], &["--no-such-option", "true"], &["-n", "2"]] {
        let ended = Job::new(arguments).run();
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr_text());
        assert!(message(&ended).starts_with("error: "), "{arguments:?}: {}", message(&ended));
        assert!(ended.stdout.is_empty());
    }
}

#[test]
fn a_command_that_is_not_found_is_named_with_a_near_match() {
    let ended = Job::new(["-n", "2", "slep", "1"]).run();
    assert_eq!(ended.code, Some(127));
    insta::assert_snapshot!(message(&ended));
}

#[test]
fn a_missing_working_directory_is_named() {
    let ended = Job::new(["-n", "2", "--wdir", "/no/such/directory", "true"]).run();
    assert_ne!(ended.code, Some(0));
    insta::assert_snapshot!(message(&ended));
}

#[test]
fn a_log_directory_that_cannot_be_written_is_named_before_anything_starts() {
    let ended = Job::new(["-n", "2", "--log-dir", "/proc/logs", "true"]).run();
    assert_ne!(ended.code, Some(0));
    insta::assert_snapshot!(message(&ended));
}

#[test]
fn more_ranks_than_processes_are_allowed_is_refused_before_anything_starts() {
    let ended = Job::new(["-n", "10000000", "true"]).run();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr_text());
    assert!(message(&ended).starts_with("error: "), "{}", message(&ended));
}

#[test]
fn a_home_that_cannot_be_written_does_not_change_the_exit_code() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    let home = tempfile::tempdir().expect("the temporary directory can be written");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o555)).expect("the directory is ours");
    for (command, code) in [("true", 0), ("false", 1)] {
        let job = Job::new(["-n", "2", command]).user(User::Nobody).env_remove("XDG_STATE_HOME");
        let ended = job.env("HOME", home.path()).run();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr_text());
    }
}

#[test]
fn the_tier_in_use_is_said_when_asked() {
    let ended = Job::new(["-v", "-n", "2", "true"]).tier(Tier::Subreaper).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("subreaper"), "{}", ended.stderr_text());
}

#[test]
fn a_cgroup_that_cannot_be_made_is_no_obstacle_and_is_said_when_asked() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    let quiet = Job::new(["-n", "2", "true"]).user(User::Nobody).run();
    assert_eq!((quiet.code, quiet.stderr_text()), (Some(0), String::new()));
    let ended = Job::new(["-v", "-n", "2", "true"]).user(User::Nobody).run();
    assert_eq!(ended.code, Some(0));
    let text = ended.stderr_text();
    assert!(text.contains("subreaper") && text.contains("cgroup"), "{text}");
}

/// A namespace of mounts in which no place for the job's directory can be written.
const NOWHERE: &str = r#"mount --bind /tmp /tmp && mkdir -p /tmp/rankrun-0 &&
mount -t tmpfs -o ro none /tmp/rankrun-0 && mount -o remount,bind,ro /tmp &&
mount -t tmpfs -o ro none /dev/shm && exec "$0" "$@""#;

#[test]
fn without_a_place_for_its_directory_a_job_is_refused_and_the_places_are_named() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can have mounts of its own");
    }
    let rankrun = rankrun().display().to_string();
    let command = ["-m", "sh", "-c", NOWHERE, &rankrun, "-n", "2", "true"];
    let job = Job::of_program("unshare", command).env_remove("XDG_RUNTIME_DIR");
    // The journal of the test would be in /tmp.
    let ended = job.env_remove("RANKRUN_JOURNAL").run();
    assert_eq!(ended.code, Some(125), "{}", ended.stderr_text());
    let text = message(&ended);
    let (start, end) = (text.find("\"/tmp").unwrap_or(0), text.rfind("\": ").map_or(0, |quote| quote + 1));
    let places: Vec<&str> = text[start..end].split(", ").collect();
    assert_eq!(places[..2], ["\"/tmp/rankrun-0\"", "\"/dev/shm/rankrun-0\""]);
    assert!(places[2].starts_with("\"/tmp/rankrun-0-") && places[3].starts_with("\"/dev/shm/rankrun-0-"), "{places:?}");
    assert_eq!(
        text.replace(&text[start..end], "[PLACES]"),
        "error: cannot make a private directory for the job in [PLACES]: Read-only file system\n"
    );
}
