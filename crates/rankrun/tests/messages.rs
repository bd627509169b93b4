//! The messages and exit codes for command lines that rankrun refuses.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// A directory in which a user might be, with a script, a data file and configuration files.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str, mode: u32| {
        std::fs::write(home.path().join(name), text).unwrap();
        std::fs::set_permissions(home.path().join(name), Permissions::from_mode(mode)).unwrap();
    };
    write("train.py", "print('hello')\n", 0o644);
    write("solver", "#!/bin/sh\n", 0o755);
    write("data", "1 2 3\n", 0o644);
    write("unknown-key.toml", "nproc = 2\n\n# how long\ngrcae = \"10s\"\n", 0o644);
    write("bad-value.toml", "nproc = 2\ngrace = \"10x\"\n", 0o644);
    write("bad-syntax.toml", "nproc = 2\ngrace = 10s\n", 0o644);
    write("settings.toml", "nproc = 2\ngrace = \"1s\"\nlinger = \"1s\"\ntag = true\n[env]\nA = \"file\"\n", 0o644);
    home
}

/// Runs rankrun in such a directory and returns what it wrote, with its exit code. Variables stand before the arguments.
fn output_with(env: &[(&str, &str)], args: &[&str]) -> String {
    let home = home();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankrun"));
    command
        .args(args)
        .current_dir(home.path())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(env.iter().copied())
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    let text =
        |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&home.path().display().to_string(), "HOME");
    format!("{}{}exit {}", text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

fn output_of(args: &[&str]) -> String {
    output_with(&[], args)
}

#[test]
fn no_command() {
    insta::assert_snapshot!(output_of(&[]), @r#"
    error: no command given
    hint: usage: rankrun [OPTIONS] COMMAND [ARG]..., as in "rankrun -n 4 python train.py"
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-n", "4"]), @r#"
    error: no command given
    hint: usage: rankrun [OPTIONS] COMMAND [ARG]..., as in "rankrun -n 4 python train.py"
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-n", "1", "./solver", ":", "-n", "2"]), @r#"
    error: no command given
    hint: usage: rankrun [OPTIONS] COMMAND [ARG]..., as in "rankrun -n 4 python train.py"
    exit 2
    "#);
}

#[test]
fn unknown_options() {
    insta::assert_snapshot!(output_of(&["--gace", "3s", "true"]), @r#"
    error: unknown option "--gace"
    hint: did you mean "--grace"?
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--frobnicate", "true"]), @r#"
    error: unknown option "--frobnicate"
    hint: "rankrun --help" lists the options
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-Z", "true"]), @r#"
    error: unknown option "-Z"
    hint: "rankrun --help" lists the options
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["clean", "--dryrun"]), @r#"
    error: unknown option "--dryrun"
    hint: did you mean "--dry-run"?
    exit 2
    "#);
}

#[test]
fn numbers_of_ranks_that_are_none() {
    insta::assert_snapshot!(output_of(&["-n", "0", "true"]), @"
    error: -n: a job needs at least 1 rank
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["-n", "-1", "true"]), @"
    error: -n: -1 is not a number of ranks
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["-np", "four", "true"]), @r#"
    error: -n: "four" is not a number of ranks, auto, cpu or gpu
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-n", "99999999999", "true"]), @"
    error: -n: 99999999999 ranks are too many
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["-n"]), @"
    error: --nproc needs a value
    hint: it is written --nproc <N>
    exit 2
    ");
}

/// Which limit binds differs from machine to machine; that there is one for four thousand million ranks does not.
#[test]
fn more_ranks_than_the_machine_can_start_are_refused_with_the_limit() {
    let output = output_of(&["-n", "4000000000", "true"]);
    assert!(output.starts_with("error: cannot start 4000000000 ranks: "), "{output}");
    assert!(output.contains("ranks can be started\nhint: "), "{output}");
    assert!(output.ends_with("exit 2"), "{output}");
}

#[test]
fn values_that_are_none() {
    insta::assert_snapshot!(output_of(&["--output", "lines", "true"]), @r#"
    error: --output: "lines" is not one of line, raw, grouped, folded, none
    hint: did you mean "line"?
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--grace", "5x", "true"]), @r#"
    error: --grace: "5x" is not a duration: write 500ms, 5s, 1m30s or 2h
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--spool", "lots", "true"]), @r#"
    error: --spool: "lots" is not a size: write 64K, 100M or 1GiB
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--only", "3-1", "true"]), @r#"
    error: --only: "3-1" is not a set of ranks: write 0, 0-3,8 or all
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--stdin", "some", "true"]), @r#"
    error: --stdin: "some" is not a rank, none, all or shared
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--wrap", "0:gdb 'x", "true"]), @r#"
    error: --wrap: a quote is not closed in "0:gdb 'x"
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["-x", "=1", "true"]), @r#"
    error: -x: "=1" does not start with the name of a variable
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--gpus-per-rank", "0", "true"]), @r#"
    error: --gpus-per-rank: "0" is not a number of GPUs or none
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--timestamps=yes", "true"]), @"
    error: --timestamps takes no value
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["-q", "-v", "true"]), @"
    error: --quiet cannot be used with --verbose
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["completions", "tcsh"]), @r#"
    error: SHELL: "tcsh" is not one of bash, fish, zsh
    exit 2
    "#);
}

#[test]
fn names_of_files_and_directories_that_are_empty() {
    for option in ["--wdir", "--log-dir", "--report-dir", "--journal", "--config"] {
        assert_eq!(output_of(&[option, "", "true"]), format!("error: {option}: the name is empty\nexit 2"));
    }
}

#[test]
fn what_a_hint_repeats_is_quoted_for_a_shell() {
    for (args, hint) in [
        (["--path", "/a b", "true"], "write -x PATH='/a b':$PATH"),
        (["--joblog", "a b", "true"], "write --journal 'a b' (events as JSON) or --report-dir DIR (the report)"),
        (["--nice", "a b", "true"], "write --wrap 'nice -n N'"),
        (["-module", "{1} {}", "true"], "write python -m '{1} {}'"),
    ] {
        let output = output_of(&args);
        assert!(output.contains(&format!("\nhint: {hint}\n")), "{output}");
    }
}

#[test]
fn reports_that_are_not_there() {
    let with_home = |args: &[&str]| output_with(&[("HOME", "/no/such/home")], args);
    for word in ["nosuch", "last", "1234"] {
        assert_eq!(
            with_home(&["report", word]),
            format!(
                "error: no report of a job \"{word}\" is kept in \"/no/such/home/.local/state/rankrun\"\n\
                 hint: \"rankrun report --list\" lists those that are; \"rankrun report\" prints the newest\nexit 2"
            )
        );
    }
    insta::assert_snapshot!(output_of(&["report", ""]), @"
    error: JOB needs a value
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["report", "--list", "foo"]), @"
    error: --list cannot be used with JOB
    exit 2
    ");
    assert_eq!(with_home(&["report", "--json", "--list", "--json"]), "[]\nexit 0");
}

#[test]
fn bad_templates() {
    insta::assert_snapshot!(output_of(&["--tag={rnk} ", "true"]), @r#"
    error: --tag: unknown field "{rnk}" at position 1; the fields are {rank}, {local_rank}, {node}, {app}, {stream} and {time}
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--tag={rank", "true"]), @r#"
    error: --tag: the "{" at position 1 is not closed; write "{{" for a brace
    exit 2
    "#);
}

#[test]
fn ranks_that_the_job_does_not_have() {
    insta::assert_snapshot!(output_of(&["-n", "4", "--stdin", "4", "true"]), @"
    error: --stdin: there is no rank 4; the job has ranks 0 to 3
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["-n", "4", "--only", "0-7", "true"]), @"
    error: --only: there is no rank 7; the job has ranks 0 to 3
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["--wrap", "1:gdb --args", "true"]), @"
    error: --wrap: there is no rank 1; the job has only rank 0
    exit 2
    ");
    insta::assert_snapshot!(output_of(&["--tty", "0", "true"]), @"
    error: --tty needs a terminal, but stdin, stdout and stderr are not terminals
    exit 2
    ");
}

#[test]
fn options_of_the_whole_job_after_the_first_command() {
    insta::assert_snapshot!(output_of(&["-n", "1", "./solver", ":", "--timeout", "3s", "./solver"]), @r#"
    error: --timeout applies to the whole job, but comes after the first ":"
    hint: write --timeout before the first command; only -n, -x, --env-remove, --wdir and --wrap may follow ":"
    exit 2
    "#);
}

#[test]
fn commands_that_are_not_found() {
    insta::assert_snapshot!(output_of(&["no-such-command"]), @r#"
    error: cannot run "no-such-command": command not found
    exit 127
    "#);
    insta::assert_snapshot!(output_of(&["train.py"]), @r#"
    error: cannot run "train.py": command not found
    hint: did you mean "python3 train.py"?
    exit 127
    "#);
    insta::assert_snapshot!(output_of(&["solver"]), @r#"
    error: cannot run "solver": command not found
    hint: did you mean "./solver"?
    exit 127
    "#);
    insta::assert_snapshot!(output_of(&["./trian.py"]), @r#"
    error: cannot run "./trian.py": no such file
    hint: did you mean "./train.py"?
    exit 127
    "#);
    insta::assert_snapshot!(output_of(&["./solver", ":", "-n", "2", "./sovler"]), @r#"
    error: cannot run "./sovler": no such file
    hint: did you mean "./solver"?
    exit 127
    "#);
    insta::assert_snapshot!(output_of(&["--wrap", "no-such-debugger --args", "true"]), @r#"
    error: cannot run "no-such-debugger": command not found
    exit 127
    "#);
}

#[test]
fn a_word_like_a_subcommand_is_a_command_after_an_option() {
    insta::assert_snapshot!(output_of(&["-n", "2", "chekc-nothing"]), @r#"
    error: cannot run "chekc-nothing": command not found
    exit 127
    "#);
    assert!(output_of(&["-n", "2", "man-without-page"]).ends_with("exit 127"));
    assert!(output_of(&["--", "completions"]).ends_with("exit 127"));
}

#[test]
fn files_that_are_not_executable() {
    insta::assert_snapshot!(output_of(&["./train.py"]), @r#"
    error: cannot run "./train.py": permission denied
    hint: did you mean "python3 ./train.py"?
    exit 126
    "#);
    insta::assert_snapshot!(output_of(&["./data"]), @r#"
    error: cannot run "./data": permission denied
    hint: make it executable with "chmod +x ./data"
    exit 126
    "#);
    insta::assert_snapshot!(output_of(&["/usr"]), @r#"
    error: cannot run "/usr": is a directory
    exit 126
    "#);
}

#[test]
fn directories_that_are_none() {
    insta::assert_snapshot!(output_of(&["--wdir", "missing", "true"]), @r#"
    error: cannot run in "HOME/missing": No such file or directory
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--wdir", "data", "true"]), @r#"
    error: cannot run in "HOME/data": it is not a directory
    exit 2
    "#);
}

#[test]
fn log_directories_that_cannot_be_written() {
    insta::assert_snapshot!(output_of(&["--log-dir", "data/logs", "true"]), @r#"
    error: cannot write log files to "HOME/data/logs": Not a directory
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--log-dir", "/proc/logs", "true"]), @r#"
    error: cannot write log files to "/proc/logs": No such file or directory
    exit 2
    "#);
}

#[test]
fn configuration_files() {
    insta::assert_snapshot!(output_of(&["--config", "missing.toml", "true"]), @r#"
    error: cannot read the configuration file "missing.toml": No such file or directory
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--config", "/tmp", "true"]), @r#"
    error: cannot read the configuration file "/tmp": Is a directory
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--config", "unknown-key.toml", "true"]), @r#"
    error: unknown-key.toml:4: unknown key "grcae"
    hint: did you mean "grace"?
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--config", "bad-value.toml", "true"]), @r#"
    error: bad-value.toml:2: grace: "10x" is not a duration: write 500ms, 5s, 1m30s or 2h
    exit 2
    "#);
    insta::assert_snapshot!(output_of(&["--config", "bad-syntax.toml", "true"]), @"
    error: bad-syntax.toml:2: string values must be quoted, expected literal string
    exit 2
    ");
}

#[test]
fn variables_of_rankrun_that_are_wrong() {
    insta::assert_snapshot!(output_with(&[("RANKRUN_GRACE", "soon")], &["true"]), @r#"
    error: RANKRUN_GRACE: "soon" is not a duration: write 500ms, 5s, 1m30s or 2h
    exit 2
    "#);
    insta::assert_snapshot!(output_with(&[("RANKRUN_KEEP_GOING", "maybe")], &["true"]), @r#"
    error: RANKRUN_KEEP_GOING: "maybe" is not yes or no
    exit 2
    "#);
    insta::assert_snapshot!(output_with(&[("RANKRUN_CONFIG", "missing.toml")], &["true"]), @r#"
    error: cannot read the configuration file "missing.toml": No such file or directory
    exit 2
    "#);
    insta::assert_snapshot!(output_with(&[("RANKRUN_CONTAINMENT", "nonsense")], &["true"]), @r#"
    error: RANKRUN_CONTAINMENT: "nonsense" is not cgroup or subreaper
    hint: leave it unset for cgroups where they can be used
    exit 2
    "#);
}

#[test]
fn gpu_masks_that_are_too_short() {
    let args = ["-n", "4", "--gpus-per-rank", "1", "true"];
    insta::assert_snapshot!(output_with(&[("CUDA_VISIBLE_DEVICES", "0,1")], &args), @"
    error: CUDA_VISIBLE_DEVICES lists too few GPUs: rank 2 needs 1, and 0 are left for it
    hint: ask for fewer GPUs or fewer ranks, or let every rank see all GPUs: --gpus-per-rank none
    exit 2
    ");
}

#[test]
fn an_address_that_this_machine_does_not_have_is_refused_before_anything_starts() {
    // TEST-NET-1 (RFC 5737): no machine has an address of it.
    for dry in [&["--dry-run"][..], &[]] {
        let output = output_of(&[dry, &["-H", "a,b", "--local-addr", "192.0.2.1", "true"]].concat());
        assert!(
            output.contains("error: --local-addr 192.0.2.1: this machine does not have this address\n"),
            "{output}"
        );
        assert!(output.ends_with("exit 2"), "{output}");
    }
}

#[test]
fn a_variable_to_pass_on_that_is_not_set_is_only_a_warning() {
    let output = output_of(&["-x", "NOT_SET", "--dry-run", "true"]);
    assert!(output.contains("warning: -x NOT_SET: no such variable is set\n"), "{output}");
    assert!(output.ends_with("exit 0"), "{output}");
}

/// The dry run of a command line, up to its list of variables, and without what differs between machines.
fn dry_run(env: &[(&str, &str)], args: &[&str]) -> String {
    let args: Vec<&str> = ["--dry-run"].into_iter().chain(args.iter().copied()).collect();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    output_with(env, &args).replace(&format!("  {}:", host.trim()), "  node:")
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let env = [("RANKRUN_CONFIG", "settings.toml"), ("RANKRUN_GRACE", "2s"), ("RANKRUN_NPROC", "3")];
    let output = dry_run(&env, &["-n", "4", "-x", "A=typed", "true"]);
    let from = output.lines().skip_while(|line| *line != "settings");
    let settings: Vec<&str> = from.take_while(|line| !line.is_empty()).collect();
    insta::assert_snapshot!(settings.join("\n"), @"
    settings
      nproc = 4               # command line
      env = A=file            # settings.toml:6
      env = A=typed           # command line
      grace = 2s              # environment variable RANKRUN_GRACE
      linger = 1s             # settings.toml:3
      tag = yes               # settings.toml:4
      config = settings.toml  # environment variable RANKRUN_CONFIG
    ");
    assert!(output.contains("A=typed"), "{output}");
}

#[test]
fn the_time_limit_of_mpiexec_is_shown_with_its_origin() {
    let output = dry_run(&[("MPIEXEC_TIMEOUT", "90")], &["true"]);
    assert!(output.contains("  timeout = 90  # environment variable MPIEXEC_TIMEOUT\n"), "{output}");
    insta::assert_snapshot!(output_with(&[("MPIEXEC_TIMEOUT", "soon")], &["true"]), @r#"
    error: MPIEXEC_TIMEOUT: "soon" is not a duration: write 500ms, 5s, 1m30s or 2h
    exit 2
    "#);
}

#[test]
fn a_dry_run_shows_what_two_ranks_get() {
    let output = dry_run(
        &[("PMI_RANK", "7"), ("OMP_NUM_THREADS", "1")],
        &["-n", "2", "-x", "A=b c", "--bind-to", "none", "./solver", "in put"],
    );
    insta::assert_snapshot!(output, @"
    2 ranks on 1 node
      node: 0-1

    settings
      nproc = 2       # command line
      env = 'A=b c'   # command line
      bind-to = none  # command line

    ranks 0-1
      command    ./solver 'in put'
      program    HOME/./solver
      directory  HOME
      set        A='b c'
                 GFORTRAN_UNBUFFERED_PRECONNECTED=y
                 GROUP_RANK=0
                 GROUP_WORLD_SIZE=1
                 LOCAL_RANK=<local rank>
                 LOCAL_WORLD_SIZE=2
                 MASTER_ADDR=127.0.0.1
                 MASTER_PORT=<port>
                 MPIR_CVAR_PMI_VERSION=1
                 MPI_LOCALNRANKS=2
                 MPI_LOCALRANKID=<local rank>
                 OMPI_COMM_WORLD_LOCAL_RANK=<local rank>
                 OMPI_COMM_WORLD_LOCAL_SIZE=2
                 OMPI_COMM_WORLD_NODE_RANK=<rank>
                 OMPI_COMM_WORLD_RANK=<rank>
                 OMPI_COMM_WORLD_SIZE=2
                 OMPI_MCA_ess=pmi
                 OMPI_MCA_ess_singleton_server=file:rankrun-offers-no-pmix
                 OMPI_MCA_pmix='^cray,flux,s1,s2'
                 OMPI_MCA_schizo='^alps,flux,jsm,moab,orte,singularity,slurm'
                 PMIX_*=<15 variables>
                 PMI_FD=<descriptor>
                 PMI_RANK=<rank>
                 PMI_SIZE=2
                 PYTHONFAULTHANDLER=1
                 PYTHONPATH=<hook>
                 PYTHONUNBUFFERED=1
                 RANK=<rank>
                 RANKRUN_ATTEMPT=0
                 RANKRUN_JAX_COORDINATOR=127.0.0.1:<port>
                 RANKRUN_JAX_LOCAL_DEVICE=<local rank>
                 RANKRUN_JOB_ID=<job>
                 RANKRUN_LOCAL_RANK=<local rank>
                 RANKRUN_LOCAL_WORLD_SIZE=2
                 RANKRUN_NNODES=1
                 RANKRUN_NODE_RANK=0
                 RANKRUN_RANK=<rank>
                 RANKRUN_SOCKET=<socket>
                 RANKRUN_WORLD_SIZE=2
                 ROLE_NAME=default
                 ROLE_RANK=<rank>
                 ROLE_WORLD_SIZE=2
                 TORCHELASTIC_ERROR_FILE='<directory>/error-0.json' | '<directory>/error-1.json'
                 TORCHELASTIC_MAX_RESTARTS=0
                 TORCHELASTIC_RESTART_COUNT=0
                 TORCHELASTIC_RUN_ID=<job>
                 TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
                 TORCHELASTIC_USE_AGENT_STORE=True
                 TORCH_NCCL_ASYNC_ERROR_HANDLING=1
                 WORLD_SIZE=2
    exit 0
    ");
}

#[test]
fn tf_config_is_set_where_it_is_asked_for() {
    let shown = |env: &[(&str, &str)], words: &[&str]| -> Vec<String> {
        let output = dry_run(env, words);
        let lines = output.lines().filter(|line| line.contains("tf-config") || line.contains("TF_CONFIG"));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    insta::assert_snapshot!(shown(&[], &["-n", "2", "--tf-config", "true"]).join("\n"), @"
    tf-config = yes  # command line
    TF_CONFIG=<cluster>
    ");
    let on = [("RANKRUN_TF_CONFIG", "yes")];
    assert_eq!(shown(&on, &["true"]).len(), 2);
    assert_eq!(shown(&on, &["--no-tf-config", "true"]), ["tf-config = no  # command line"]);
    assert_eq!(shown(&[("TF_CONFIG", "of a pod")], &["true"]), ["removed    TF_CONFIG"]);
}

#[test]
fn a_dry_run_of_many_ranks_stays_short() {
    let args = ["-n", "1", "./solver", ":", "-n", "511", "--wrap", "2-4:env X=1", "--wdir", "/", "true"];
    let output = dry_run(&[], &args);
    assert!(output.lines().count() < 90, "{output}");
    let heads: Vec<&str> =
        output.lines().filter(|line| line.starts_with("rank") || line.starts_with("  command")).collect();
    insta::assert_snapshot!(heads.join("\n"), @"
    rank 0
      command    ./solver
    ranks 1,5-511
      command    true
    ranks 2-4
      command    env X=1 true
    ");
}

#[test]
fn the_short_help_fits_a_screen() {
    let output = output_with(&[("COLUMNS", "80")], &["-h"]);
    assert!(output.lines().count() <= 45, "{} lines", output.lines().count());
    for line in output.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    // Each option is one line.
    assert!(
        output.lines().filter(|line| line.trim_start().starts_with('-')).all(|line| line.contains("  ")),
        "{output}"
    );
    insta::assert_snapshot!(output);
}

#[test]
fn help_man_page_and_completions_know_every_option() {
    let (help, man, bash) = (output_of(&["--help"]), output_of(&["man"]), output_of(&["completions", "bash"]));
    for option in ["--nproc", "--stop-scope", "--env-remove", "--gpus-per-rank", "--report-dir", "--tag"] {
        for (place, text) in [("help", &help), ("man page", &man.replace('\\', "")), ("completions", &bash)] {
            assert!(text.contains(option), "{option} is missing in the {place}");
        }
    }
}
