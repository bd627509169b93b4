//! `{rank}` and its like in `--wrap`, `-x`, `--wdir` and `--log-dir`: what a dry run shows, and what real ranks get.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::path::Path;
use std::process::{Command, Stdio};

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for directory in ["d0", "d1"] {
        std::fs::create_dir(home.path().join(directory)).unwrap();
    }
    home
}

/// Runs rankrun in this directory; what it wrote to stdout and stderr, and its exit code.
fn rankrun(home: &Path, args: &[&str]) -> (String, String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_rankrun"))
        .args(args)
        .current_dir(home)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("PASSED", "{rank}")])
        .env("HOME", home)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(home.to_str().unwrap(), "HOME");
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn every_rank_gets_its_own_wrap_variables_directory_and_log_files() {
    let home = home();
    let json = r#"JSON={"rank": {rank}, "x": {"y": {}}}"#;
    let (stdout, stderr, code) = rankrun(
        home.path(),
        &[
            "-n",
            "2",
            "--output",
            "grouped",
            "--log-dir",
            "logs-{attempt}/{rank}",
            "--wdir",
            "d{local_rank}",
            "--wrap",
            "env WRAPPED=w.{rank}",
            "-x",
            "OWN=o.{rank}",
            "-x",
            json,
            "-x",
            "TEXT={{rank}}",
            "-x",
            "PASSED",
            "sh",
            "-c",
            "echo \"$WRAPPED $OWN $JSON $TEXT $PASSED ${PWD##*/}\"; echo {rank}",
        ],
    );
    assert_eq!((stderr.as_str(), code), ("", 0));
    let lines = [
        r#"w.0 o.0 {"rank": 0, "x": {"y": {}}} {rank} {rank} d0"#,
        "{rank}",
        r#"w.1 o.1 {"rank": 1, "x": {"y": {}}} {rank} {rank} d1"#,
        "{rank}",
    ];
    assert_eq!(stdout.lines().collect::<Vec<_>>(), lines, "arguments of the program stay as they are");
    for rank in ["0", "1"] {
        let directory = home.path().join("logs-0").join(rank);
        let names: Vec<String> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with("stdout"))
            .collect();
        let [name] = &names[..] else { panic!("{names:?}") };
        let text = std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(text.starts_with(&format!("w.{rank} o.{rank} ")), "{text}");
    }
}

#[test]
fn the_job_and_the_node_have_their_names() {
    let home = home();
    let print = "test \"$JOB\" = \"$RANKRUN_JOB_ID\" && test \"$NODE\" = \"$(uname -n)\" && echo same";
    let args = ["-x", "JOB={job}", "-x", "NODE={node}", "--log-dir", "{job}", "sh", "-c", print];
    let (stdout, stderr, code) = rankrun(home.path(), &args);
    assert_eq!((stdout.as_str(), stderr.as_str(), code), ("same\n", "", 0));
}

#[test]
fn a_dry_run_shows_a_rank_as_it_is_and_several_by_the_names_of_their_fields() {
    let home = home();
    let shown = |args: &[&str]| {
        let (stdout, stderr, code) = rankrun(home.path(), args);
        assert_eq!((stderr.as_str(), code), ("", 0));
        let of_interest = ["rank", "  command", "  directory"];
        let lines = stdout
            .lines()
            .filter(|line| of_interest.iter().any(|start| line.starts_with(start)) || line.contains("OWN="));
        lines.collect::<Vec<_>>().join("\n")
    };
    let words =
        ["--wrap", "0:env A={rank}", "--wrap", "env B={rank}", "-x", "OWN=o.{rank}", "--wdir", "d{rank}", "true"];
    insta::assert_snapshot!(shown(&[&["--dry-run", "-n", "2"], &words[..]].concat()), @"
      env = 'OWN=o.{rank}'     # command line
    rank 0
      command    env A=0 env B=0 true
      directory  HOME/d0
                 OWN=o.0
    rank 1
      command    env B=1 true
      directory  HOME/d1
                 OWN=o.1
    ");
    insta::assert_snapshot!(shown(&[&["--dry-run", "-n", "2"], &words[2..]].concat()), @"
      env = 'OWN=o.{rank}'   # command line
    ranks 0-1
      command    env 'B=<rank>' true
      directory  HOME/d<rank>
                 OWN=o.0 | o.1
    ");
}

#[test]
fn mistakes_in_fields_are_refused() {
    let home = home();
    let output_of = |args: &[&str]| {
        let (stdout, stderr, code) = rankrun(home.path(), args);
        format!("{stdout}{stderr}exit {code}")
    };
    insta::assert_snapshot!(output_of(&["--wrap", "perf -o out.{rnk}", "true"]), @r#"
    error: --wrap: unknown field "{rnk}"; the fields are {rank}, {local_rank}, {job}, {attempt} and {node}
    hint: write {{rnk}} for that text itself
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--log-dir", "{jobid}", "true"]), @r#"
    error: --log-dir: unknown field "{jobid}"; the fields are {rank}, {local_rank}, {job}, {attempt} and {node}
    hint: write {{jobid}} for that text itself
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-n", "3", "--wdir", "d{rank}", "true"]), @r#"
    error: cannot run in "HOME/d2": No such file or directory
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-n", "2", "--wrap", "./tool-{rank}", "true"]), @r#"
    error: cannot run "./tool-0": no such file
    exit 127
    "#);
    insta::assert_snapshot!(output_of(&["-x", "PATH=/opt/{rank}", "true"]), @"
    error: -x: PATH is the same for all ranks, and takes no fields
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["--gpus-per-rank", "1", "-x", "CUDA_VISIBLE_DEVICES={rank}", "true"]), @"
    error: --gpus-per-rank cannot be used with fields in CUDA_VISIBLE_DEVICES
    hint: leave one of them out: both say which GPUs each rank has
    exit 2
    ");
}
