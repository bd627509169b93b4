//! What command lines of mpiexec and mpirun become.

use std::ffi::{OsStr, OsString};

use rankrun_core::foreign_codes::Codes;

use super::lists::{DISPLAY, FAULT_TOLERANCE, OUTPUT, RUNTIME};
use super::table::{Launcher, Special, TABLE, named};
use super::{Around, is_name, read};
use crate::args;
use crate::dialect::{Here, Reading, Stop};

fn reading_in(env: &[(&str, &str)], words: &[&str]) -> Result<Reading, String> {
    let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    read(&words, &Around { name: OsStr::new("mpiexec"), env: &env, packages: || 2, numa_nodes: || 3 }).map_err(|stop| {
        match stop {
            Stop::Problem(problem) => problem.to_string(),
            Stop::Help => "help".to_owned(),
            Stop::Version => "version".to_owned(),
            Stop::Text(text) => text,
        }
    })
}

fn reading(words: &[&str]) -> Result<Reading, String> {
    reading_in(&[], words)
}

/// A command line of mpiexec as one of ours; both are split at blanks.
fn ours(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let reading = reading(&words).unwrap_or_else(|problem| panic!("{line}: {problem}"));
    crate::words::quote_all(&reading.words)
}

fn refusal(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    reading(&words).map(|reading| crate::words::quote_all(&reading.words)).expect_err(line)
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("it can be written");
    file
}

#[test]
fn options_of_each_launcher_become_ours() {
    for (theirs, expected) in [
        ("-n 4 ./a -n 3", "-n 4 ./a -n 3"),
        ("--np 4 -l ./a", "--tag -n 4 ./a"),
        ("-np=4 ./a", "-n 4 ./a"),
        ("-c 2 ./a", "-n 2 ./a"),
        ("-ppn 3 ./a", "--ppn=3 ./a"),
        ("-ppn 3 -n 6 ./a", "--oversubscribe --ppn=3 -n 6 ./a"),
        ("--map-by ppr:1:numa -n 6 ./a", "--oversubscribe --ppn=3 --map-by=numa --bind-to=numa -n 6 ./a"),
        ("-npernode 3 -n 6 ./a", "--ppn=3 -n 6 ./a"),
        ("--map-by ppr:2:node:PE=4 ./a", "--ppn=2 --map-by=slot:PE=4 --bind-to=core ./a"),
        ("--map-by node -n 2 ./a", "--map=cyclic -n 2 ./a"),
        ("--map-by slot -n 2 ./a", "-n 2 ./a"),
        ("-pernode ./a", "--ppn=1 ./a"),
        ("-npersocket 3 ./a", "--ppn=6 --map-by=package:BLOCK=3 --bind-to=numa ./a"),
        ("--map-by ppr:1:numa ./a", "--ppn=3 --map-by=numa --bind-to=numa ./a"),
        ("-n 1 -genv A 1 -env B x=y ./a : -n 2 -x C ./b", "-n 1 -x A=1 -x B=x=y ./a : -n 2 -x A=1 -x C ./b"),
        ("-genv A=1 -n 1 ./a", "-n 1 -x A=1 ./a"),
        ("--mca btl self,tcp --pmixmca a b -n 1 ./a", "-n 1 -x OMPI_MCA_btl=self,tcp -x PMIX_MCA_a=b ./a"),
        ("--prtemca a b -n 1 ./a", "-n 1 ./a"),
        ("--mca orte_tag_output 1 -n 1 ./a", "--tag -n 1 -x OMPI_MCA_orte_tag_output=1 ./a"),
        ("--mca orte_tag_output 0 -n 1 ./a", "-n 1 -x OMPI_MCA_orte_tag_output=0 ./a"),
        ("--prtemca plm_ssh_agent /opt/ssh -n 1 ./a", "--ssh-command=/opt/ssh -n 1 ./a"),
        ("--prtemca rmaps_base_mapping_policy node -n 2 ./a", "--map=cyclic -n 2 ./a"),
        ("--prtemca oob_tcp_if_include eth0 -n 1 ./a", "--interface=eth0 -n 1 ./a"),
        ("--prtemca rmaps_base_n_pernode 3 -n 6 ./a", "--ppn=3 -n 6 ./a"),
        ("--prtemca orte_output_filename logs -n 2 ./a", "'--log-dir=logs/{job}' -n 2 ./a"),
        ("-genvnone -genvlist A,B -envexcl C -n 1 ./a", "-n 1 --env-remove C ./a"),
        ("-host vm ./a", "--hosts=vm ./a"),
        ("-genv=A 1 -x B={rank} -wdir {x} -n 1 ./a", "-n 1 -x A=1 -x 'B={{rank}}' '--wdir={{x}}' ./a"),
        ("-n 1 ./a : ./b", "-n 1 ./a : -n 1 ./b"),
        ("-wdir /tmp -n 1 ./a : --wd / -n 1 ./b", "-n 1 --wdir=/tmp ./a : -n 1 --wdir=/ ./b"),
        ("-gwdir /tmp -n 1 ./a : -n 1 ./b", "-n 1 --wdir=/tmp ./a : -n 1 --wdir=/tmp ./b"),
        (
            "-outfile-pattern out.%r -errfile-pattern err.%h -n 2 ./a",
            "'--stdout-file=out.{rank}' '--stderr-file=err.{node}' -n 2 ./a",
        ),
        ("-prepend-pattern %r: -n 2 ./a", "'--tag={rank}:' -n 2 ./a"),
        ("-output-filename logs -n 2 ./a", "'--log-dir=logs/{job}' -n 2 ./a"),
        ("--output tag,dir=logs:nocopy -n 2 ./a", "--tag '--log-dir=logs/{job}' --output=none -n 2 ./a"),
        ("--runtime-options error-nonzero-status=0,timeout=5 -n 1 ./a", "--keep-going --timeout=5 -n 1 ./a"),
        ("--runtime-options continuous=0,donotlaunch=false -n 1 ./a", "-n 1 ./a"),
        ("--runtime-options error-nonzero-status=false -n 1 ./a", "--keep-going -n 1 ./a"),
        ("-disable-auto-cleanup -n 2 ./a", "--keep-going -n 2 ./a"),
        ("--with-ft ulfm -n 2 ./a", "--keep-going -x OMPI_MCA_mpi_ft_enable=1 -n 2 ./a"),
        ("--with-ft none -n 2 ./a", "-n 2 ./a"),
        ("-gtool gdb:0,3 -n 4 ./a", "-n 4 --wrap=0,3:gdb ./a"),
        ("-s all -n 2 ./a", "--stdin=all -n 2 ./a"),
        ("--timeout 5 --stdin none -n 2 ./a", "--timeout=5 --stdin=none -n 2 ./a"),
        ("--oversubscribe --allow-run-as-root -n 2 ./a", "--oversubscribe -n 2 ./a"),
        ("-launcher ssh -iface eth0 -n 2 ./a", "--interface=eth0 -n 2 ./a"),
        ("-host localhost,vm:3 ./a", "--hosts=localhost,vm:3 ./a"),
        ("-H a:2,b:2 -n 4 ./a", "--hosts=a:2,b:2 -n 4 ./a"),
        ("-hosts a,b -n 2 ./a", "--hosts=a,b --oversubscribe -n 2 ./a"),
        ("-hosts a,b -n 4 ./a", "--hosts=a,b --oversubscribe --map=seq -n 4 ./a"),
        ("-hosts a,b -ppn 2 -n 8 ./a", "--hosts=a,b --oversubscribe --ppn=2 --map=seq -n 8 ./a"),
        ("-rr -hosts a:2,b:2 ./a", "--hosts=a:2,b:2 --map=cyclic ./a"),
        ("-H a:2 -H me@b ./a", "--hosts=a:2,me@b ./a"),
        ("-n 4 -H a ./a : -n 2 -H b ./b", "--hosts=a:4,b:2 -n 4 ./a : -n 2 ./b"),
        ("-n 4 -H a ./a : -n 2 -H a ./b", "--hosts=a:6 -n 4 ./a : -n 2 ./b"),
        ("-n 2 -host a ./a : -n 2 -host b ./b", "--hosts=a:2,b:2 -n 2 ./a : -n 2 ./b"),
        (
            "-n 1 -H a ./a : -n 1 -H b ./b : -n 1 -H a ./c",
            "--hosts=a:1,b:1,a:1 --map=seq -n 1 ./a : -n 1 ./b : -n 1 ./c",
        ),
        ("--grace 3s --wrap nice -n 2 ./a", "--grace 3s -n 2 --wrap nice ./a"),
        ("-n 2 -- -a", "-n 2 -- -a"),
    ] {
        assert_eq!(ours(theirs), expected, "{theirs}");
    }
}

#[test]
fn what_is_not_done_is_said_once() {
    let warnings = |words: &[&str]| reading(words).expect("it is a job").warnings;
    assert_eq!(
        warnings(&["-use-app-topology", "x", "-n", "1", "a", ":", "-use-app-topology", "x", "-n", "1", "b"]),
        ["-use-app-topology x: ranks are placed by -ppn, hosts and their slots alone"]
    );
    assert_eq!(warnings(&["--bind-to", "none", "-n", "1", "a"]), [""; 0]);
    assert_eq!(
        warnings(&["--mca", "rmaps_base_x", "1", "-n", "1", "a"]),
        ["--mca rmaps_base_x 1: not read: write --map-by, --ppn or -host for the places of ranks"]
    );
    assert_eq!(
        warnings(&["--mca", "orte_abort_timeout", "3", "--mca", "orte_tmpdir_base", "/x", "-n", "1", "a"]),
        ["--mca orte_abort_timeout 3: not read: there are no daemons of Open MPI"]
    );
    assert_eq!(
        warnings(&["--mca", "oob_tcp_if_include", "10.0.0.0/8", "-n", "1", "a"]),
        ["--mca oob_tcp_if_include 10.0.0.0/8: not read: write --interface NAME for the network between the hosts"]
    );
    assert_eq!(warnings(&["--display", "map,bind", "-n", "1", "a"]).len(), 1);
}

#[test]
fn parameters_of_mpirun_in_the_environment_are_followed_unless_an_option_says_otherwise() {
    let line = |env: &[(&str, &str)], words: &[&str]| {
        let reading = reading_in(env, words).expect("it is a job");
        let shown: Vec<_> = reading.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        (shown.join(" "), reading.warnings.join("; "))
    };
    let plain = ["-n", "1", "a"];
    let agent = [("OMPI_MCA_plm_rsh_agent", "ssh : rsh"), ("OMPI_MCA_plm_rsh_args", "-p 22")];
    assert_eq!(line(&agent, &plain), ("--ssh-command=ssh -p 22 -n 1 a".to_owned(), String::new()));
    let given = ["--ssh-command", "mine", "-n", "1", "a"];
    assert_eq!(line(&agent, &given).0, "--ssh-command mine -n 1 a");
    let by_option = ["--prtemca", "plm_rsh_agent", "mine", "-n", "1", "a"];
    assert_eq!(line(&agent[..1], &by_option).0, "--ssh-command=mine -n 1 a");
    let bound = [("OMPI_MCA_hwloc_base_binding_policy", "core"), ("OMPI_MCA_btl", "self")];
    assert_eq!(line(&bound, &plain), ("--map-by=core --bind-to=core -n 1 a".to_owned(), String::new()));
    let unbound = ["--bind-to-socket", "--map-by", "core", "-n", "1", "a"];
    assert_eq!(line(&bound, &unbound).0, "--map-by=core --bind-to=package -n 1 a");
    assert_eq!(line(&[("PRTE_MCA_prte_tag_output", "true")], &plain).0, "--tag -n 1 a");
    let of_outer = [("OMPI_MCA_orte_hnp_uri", "1.0;tcp://10.0.0.1:1"), ("OMPI_MCA_orte_ess_num_procs", "2")];
    assert_eq!(line(&of_outer, &plain), ("-n 1 a".to_owned(), String::new()), "an mpirun above us has set it");
    // The command line wins, by whichever option it says so.
    let alone = |words: &[&str]| line(&[], words);
    for (variable, value, words) in [
        ("OMPI_MCA_rmaps_base_mapping_policy", "ppr:1:node", &["-H", "a:2,b:2", "--map-by", "ppr:2:node", "x"][..]),
        ("OMPI_MCA_rmaps_base_n_pernode", "4", &["-H", "a:8,b:8", "-N", "2", "x"]),
        ("OMPI_MCA_rmaps_base_mapping_policy", "node", &["-H", "a:2,b:2", "-n", "4", "--map-by", "slot", "x"]),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1", &["-H", "a:2", "-n", "2", "--nooversubscribe", "x"]),
        ("OMPI_MCA_orte_output_filename", "logs", &["-n", "1", "--output-filename", "mine", "x"]),
    ] {
        assert_eq!(line(&[(variable, value)], words), alone(words), "{variable}");
    }
    let template = ["--tag={rank}", "-n", "1", "a"];
    assert_eq!(line(&[("OMPI_MCA_orte_tag_output", "1")], &template).0, "--tag --tag={rank} -n 1 a");
}

#[test]
fn without_a_number_the_hosts_the_resource_manager_or_the_cpus_say_it() {
    let word = |at: usize, env: &[(&str, &str)], words: &[&str]| {
        let reading = reading_in(env, words).expect("it is a job");
        (reading.words[at].to_string_lossy().into_owned(), reading.warnings.len())
    };
    let first = |env: &[(&str, &str)], words: &[&str]| word(0, env, words);
    let count = |env: &[(&str, &str)], words: &[&str]| word(1, env, words);
    assert_eq!(count(&[], &["./a"]), ("auto".to_owned(), 1));
    assert_eq!(count(&[("SLURM_NTASKS", "6"), ("SLURM_JOB_NUM_NODES", "1")], &["./a"]), ("6".to_owned(), 1));
    assert_eq!(count(&[("SLURM_NTASKS", "6"), ("SLURM_JOB_NUM_NODES", "2")], &["./a"]), ("auto".to_owned(), 1));
    let in_slurm = [("SLURM_NTASKS", "6"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]")];
    assert_eq!(first(&in_slurm, &["./a"]), ("./a".to_owned(), 0), "the allocation says it");
    assert_eq!(first(&[("I_MPI_PERHOST", "3")], &["./a"]), ("--ppn=3".to_owned(), 0));
    let hosts = file("localhost slots=4\n");
    let path = hosts.path().to_str().expect("UTF-8");
    let of_file = (format!("--hostfile={path}"), 0);
    assert_eq!(first(&[], &["--hostfile", path, "./a"]), of_file);
    assert_eq!(first(&[("HYDRA_HOST_FILE", path)], &["./a"]), of_file);
    assert_eq!(first(&[], &["-machine", path, "./a"]), of_file, "a file");
    assert_eq!(first(&[], &["-machine", "vm:2", "./a"]), ("--hosts=vm:2".to_owned(), 0), "a list");
}

#[test]
fn files_of_command_lines_are_the_rest_of_the_line() {
    let lines = file("# two\n-n 1 ./a 'x y'\n-n 2 -env A 1 ./b\n");
    let path = lines.path().to_str().expect("UTF-8");
    assert_eq!(ours(&format!("-l -configfile {path}")), "--tag -n 1 ./a 'x y' : -n 2 -x A=1 ./b");
    assert_eq!(ours(&format!("--app={path}")), "-n 1 ./a 'x y' : -n 2 -x A=1 ./b");
    assert!(refusal(&format!("-configfile {path} ./a")).contains("extra argument"));
    let nested = file(&format!("-configfile {path}\n"));
    let nested = nested.path().to_str().expect("UTF-8").to_owned();
    assert!(refusal(&format!("-configfile {nested}")).contains("names another file"));
    assert!(refusal("-configfile /nonexistent").contains("cannot read \"/nonexistent\": No such file or directory"));
    assert!(refusal("-configfile").contains("a file is missing"));
    let bare = file("-n 2\n");
    assert!(refusal(&format!("-configfile {}", bare.path().display())).contains("no command given in"));
}

#[test]
fn mistakes_are_refused_with_a_way_out() {
    let cases = [
        "-n 2",
        "-n 4 -host node1,node2 ./a : -n 2 -host node3 ./b",
        "-hosts a:x ./a",
        "-np4 ./a",
        "-hlep ./a",
        "-bnid-to core ./a",
        "-n",
        "-genv A ./a",
        "-l=3 ./a",
        "-gdb -n 2 ./a",
        "-debug -n 2 ./a",
        "-configfile",
        "-map-by ppr:x:node ./a",
        "-ppn 0 ./a",
        "-outfile-pattern out.%q ./a",
        "--output tga ./a",
        "--output xml ./a",
        "--output dir -n 2 ./a",
        "--strict=slurm ./a",
        "-n 3 -configfile f",
        "-gtool gdb ./a",
    ];
    let text: Vec<String> = cases.iter().map(|line| format!("$ mpiexec {line}\n{}", refusal(line.trim()))).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn texts_and_codes_are_asked_for_by_options() {
    for line in ["-h", "--help", "-help", "-n 2 --help"] {
        assert_eq!(refusal(line), "help");
    }
    for line in ["-V", "--version", "-info"] {
        assert_eq!(refusal(line), "version");
    }
    assert_eq!(reading(&["--strict=openmpi5", "-n", "1", "a"]).expect("a job").codes, Some(Codes::OpenMpi5));
    assert_eq!(reading(&["-n", "1", "a"]).expect("a job").codes, None);
}

#[test]
fn a_binary_that_is_called_so_speaks_the_dialect() {
    for name in ["mpiexec", "/usr/bin/mpirun", "./mpiexec.hydra", "mpirun.openmpi"] {
        assert!(is_name(name.as_ref()), "{name}");
    }
    for name in ["rankrun", "/mpiexec/rankrun", "mpiexec2", ""] {
        assert!(!is_name(name.as_ref()), "{name}");
    }
}

#[test]
fn each_name_has_one_row() {
    for row in TABLE {
        for name in row.names {
            let first = named(name).expect("it is in the table");
            assert_eq!(first.names, row.names, "{name} is in two rows");
        }
    }
}

#[test]
fn every_option_of_every_launcher_is_in_the_table() {
    let mut missing = Vec::new();
    for line in include_str!("options.tsv").lines().filter(|line| !line.starts_with('#')) {
        let [launcher, names, words] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let launcher = match launcher {
            "hydra" => Launcher::Hydra,
            "intel" => Launcher::Intel,
            "openmpi4" => Launcher::OpenMpi4,
            _ => Launcher::OpenMpi5,
        };
        for name in names.split(',') {
            let Some(row) = named(name) else {
                missing.push(format!("{launcher:?} {name}: no row"));
                continue;
            };
            // The row says how many words each launcher takes where they disagree.
            let is_apart = name == "-s" || name == "--s";
            if !row.launchers.contains(&launcher) && !is_apart {
                missing.push(format!("{launcher:?} {name}: the row is of {:?}", row.launchers));
            }
            let is_read = !matches!(row.here, Here::Refused(_) | Here::Special(Special::Help, _));
            if is_read && !is_apart && words != row.words().to_string() {
                missing.push(format!("{launcher:?} {name}: {words} words, and the row has {}", row.words()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn words_of_ours_in_the_table_are_options_of_ours() {
    let command = args::job();
    let known = args::long_names(&command);
    let of_words =
        [OUTPUT, DISPLAY, RUNTIME, FAULT_TOLERANCE].into_iter().flatten().map(|word| ([word.name; 1], word.here));
    let of_rows = TABLE.iter().map(|row| ([row.names[0]; 1], row.here));
    for (names, here) in of_rows.chain(of_words) {
        let (words, advice) = match here {
            Here::Same(words) => (words, ""),
            Here::Differs(words, how) => (words, how),
            Here::Refused(text) | Here::Without(text) | Here::Already(text) | Here::Special(_, text) => (&[][..], text),
        };
        let words = words.iter().copied().chain(advice.split([' ', '=', ',', ';', ')', '\'']));
        for word in words.map(|word| word.trim_end_matches(':')).filter(|word| word.starts_with("--")) {
            let name = word.split('=').next().unwrap_or(word);
            let theirs = ["--args", "--mca", "--collection-mode", "--preload-binary"].contains(&name);
            assert!(theirs || known.iter().any(|known| known == name), "{names:?}: {word}");
        }
    }
}
