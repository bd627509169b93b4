use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use super::{Around, is_name, read};
use crate::dialect::Stop;

fn reading(line: &str, env: &[(&str, &str)]) -> Result<crate::dialect::Reading, Stop> {
    let words = crate::words::split(OsStr::new(line)).expect("its quotes are closed");
    let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    read(&words, &Around { env: &env, called: OsStr::new("/opt/bin/rankrun"), cpus: || 4, gpus: || 0 })
}

/// What a line stands for, with warnings; or why it does not.
fn told(line: &str, env: &[(&str, &str)]) -> String {
    match reading(line, env) {
        Ok(reading) => {
            let warnings: String = reading.warnings.iter().map(|warning| format!("\n  warning: {warning}")).collect();
            let codes = reading.codes.map(|codes| format!("\n  codes of {}", codes.name())).unwrap_or_default();
            format!("{}{codes}{warnings}", crate::words::quote_all(&reading.words))
        }
        Err(Stop::Problem(problem)) => problem.to_string(),
        Err(Stop::Help) => "help".to_owned(),
        Err(Stop::Version) => "version".to_owned(),
        Err(Stop::Text(text)) => text,
    }
}

fn all(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        // Writing into a string does not fail.
        let _ = writeln!(text, "$ torchrun {line}\n{}\n", told(line, &[]));
    }
    text
}

#[test]
fn command_lines_become_ours() {
    insta::assert_snapshot!(all(&[
        "train.py --nproc-per-node 3",
        "--nproc-per-node 2 --no-python ./solver : -n",
        "--nproc_per_node=auto -m pkg.train x",
        "--nproc-per-node cpu --run-path /a/train.py",
        "--nproc 2 train.py '${local_rank}' 'a{rank}' '$$' '$local_ranks'",
        "--nproc 2 train.py '$$' '{rank}'",
        "--master-port 1234 --master-addr ::1 train.py",
        "--rdzv-endpoint [::1]:99 --rdzv-id x{job} train.py",
        "--rdzv-backend c10d --rdzv-endpoint host --rdzv-id r train.py",
        "--standalone --rdzv-id r --master-port 1 train.py",
        "--nnodes 1:4 --max-restarts 3 --role '{rank}' train.py",
        "--nnodes 2 --nproc 4 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py",
        "--nnodes 1:2 --nproc 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 train.py",
        "--nnodes 2:2 --node-rank 1 --nproc 2 --master-addr fe80::1 --master-port 1234 train.py",
        "--shutdown-timeout 0 --signals-to-handle SIGTERM,SIGALRM --event-log-handler console --numa-binding node train.py",
        "--log-dir /dev/null -r 3 --tee 3 train.py",
        "--log-dir 'l/{x}' -r3 -t=1:1 --nproc 2 --duplicate-stdout-filters a,b,,c --duplicate-stderr-filters z train.py",
        "-t 0:3 --nproc 2 train.py",
        "--virtual-local-rank --nproc 2 train.py",
        "--nproc 2 --local-ranks-filter 0 -t 0:3,1:1 --duplicate-stdout-filters out --log-dir l train.py",
        "--nnodes 2 --nproc 2 --local-ranks-filter 1 --rdzv-endpoint a:1 train.py",
        "--nproc 2 --redirects 5:1 train.py",
        "--strict --timeout 5 --report-dir r -x A=1 train.py",
        "--print-completion bash",
    ]));
}

#[test]
fn mistakes_are_refused_with_a_way_out() {
    insta::assert_snapshot!(all(&[
        "--nproc-per-node npu train.py",
        "--nnodes 2 train.py",
        "--nnodes 2 --rdzv-endpoint a:0 train.py",
        "--nnodes 2:4 --rdzv-endpoint a train.py",
        "--nnodes 1: train.py",
        "--node-rank 1 train.py",
        "--rdzv-backend etcd train.py",
        "--rdzv-endpoint :29500 train.py",
        "--logs-specs mine train.py",
        "-m --no-python x",
        "--log train.py",
        "--redirects 9 train.py",
        "--nproc-per-nodes 2 train.py",
        "--strict=hydra train.py",
        "--tee",
        "--tee train.py",
        "-mr3 x",
        "--nproc-per-node gpu train.py",
        "-n 2 train.py",
        "--nproc 2 --local-ranks-filter 0,7 train.py",
        "--local-ranks-filter 0-1 train.py",
        "--start-method thread train.py",
        "--rdzv-conf foo train.py",
        "--rdzv-conf a=1,=2 train.py",
        "--max-restarts -1 train.py",
        "--rdzv-backend c10dd train.py",
        "--rdzv-backend zeus train.py",
        "--rdzv-timeout 5 train.py",
        "--rdzv-bakend c10d train.py",
        "--nproc-per-node 2 python train.py",
        "python3.11 train.py",
        "torchrun train.py",
    ]));
}

#[test]
fn variables_are_read_where_nothing_is_typed() {
    let words = |line: &str, env: &[(&str, &str)]| told(line, env);
    assert!(words("x.py", &[("PET_NPROC_PER_NODE", "2")]).contains("-n 2 "));
    assert!(words("--nproc-per-node 3 x.py", &[("PET_NPROC_PER_NODE", "2")]).contains("-n 3 "));
    assert!(words("x.py", &[("SLURM_JOB_NODELIST", "n[1-2]")]).contains("--hosts=localhost -n 1 "));
    assert!(words("x.py", &[("PET_NO_PYTHON", "1")]).ends_with("-- x.py"));
    assert!(words("x.py", &[("PET_NO_PYTHON", "0")]).ends_with("-- python -u x.py"));
    assert_eq!(words("x.py", &[("PET_NO_PYTHON", "yes")]), "error: PET_NO_PYTHON: \"yes\" is not 0 or 1");
    let etcd = words("x.py", &[("PET_RDZV_BACKEND", "etcd")]);
    assert!(etcd.contains("\nhint: unset PET_RDZV_BACKEND: "), "{etcd}");
    assert!(words("x.py", &[("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")]).contains("--grace=7s"));
    assert!(!words("--nproc 2 x.py", &[("OMP_NUM_THREADS", "7")]).contains("OMP_NUM_THREADS"));
    assert!(words("x.py", &[("PYTHON_EXEC", "/p/python")]).ends_with("-- /p/python -u x.py"));
    let masked = words("--virtual-local-rank x.py", &[("CUDA_VISIBLE_DEVICES", "3,4")]);
    assert!(masked.contains("--gpus-per-rank=1"), "{masked}");
}

#[test]
fn one_node_at_least_starts_alone_where_only_this_machine_can_be_reached() {
    for endpoint in ["localhost:29511", "127.0.0.1:29511", "[::1]:29511"] {
        for backend in ["", "--rdzv-backend c10d "] {
            let line = told(&format!("--nnodes 1:2 {backend}--rdzv-endpoint {endpoint} x.py"), &[]);
            assert!(line.contains(" -n 1 ") || line.starts_with("-n 1 ") && !line.contains("--rendezvous"), "{line}");
            assert!(line.contains("starting with one node, this machine"), "{line}");
        }
    }
    // With a secret, several commands of one machine meet.
    let secret = [("RANKRUN_SECRET_FILE", "/s")];
    assert!(told("--nnodes 1:2 --rdzv-endpoint localhost:1 x.py", &secret).contains("--rendezvous=localhost:1"));
    assert!(told("--nnodes 1:2 --rdzv-endpoint localhost:1 --secret-file s x.py", &[]).contains("--rendezvous="));
    assert!(told("--nnodes 1:2 --rdzv-endpoint node0:1 x.py", &[]).contains("--rendezvous=node0:1"));
    assert!(told("--nnodes 2 --rdzv-endpoint localhost:1 x.py", &[]).contains("--rendezvous=localhost:1"));
}

#[test]
fn a_link_is_known_by_its_name() {
    for (path, is) in [("torchrun", true), ("/a/bin/torchrun", true), ("rankrun", false), ("torchrun2", false)] {
        assert_eq!(is_name(OsStr::new(path)), is, "{path}");
    }
}
