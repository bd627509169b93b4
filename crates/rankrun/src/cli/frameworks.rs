//! The options for what the ranks run on and connect with: GPUs, MPI, TensorFlow.

use clap::Arg;

use crate::args::{choice, option, switch};
use crate::choices;

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    let mut args = vec![
        option(
            "gpus-per-rank",
            "N",
            heading,
            "Give each rank N GPUs of its own",
            "Sets CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, and ZE_AFFINITY_MASK to a \
             part of what they list, by local rank. Without such a variable, the devices that rankrun sees on the \
             machine are counted from 0; where it sees none, the option is refused. By default (\"none\") every \
             rank sees all GPUs, and programs choose one by their local rank.",
        ),
        choice(
            "mpi",
            "KIND",
            heading,
            "How MPI libraries connect",
            "MPICH, Intel MPI and MVAPICH find each other through a socket that each rank inherits (PMI-1), Open MPI \
             through a server that is started when a rank of Open MPI connects to it (PMIx).",
            choices::MPI,
        ),
        option(
            "pmix-lib",
            "FILE",
            heading,
            "The libpmix.so.2 that serves ranks of Open MPI",
            "By default it is the one that the first of these ranks has loaded itself, else one beside the program or \
             in the system's directories.",
        ),
        choice(
            "torch-store",
            "WHO",
            heading,
            "Who serves torch's store at MASTER_PORT",
            "The ranks of torch find each other through it. A program that starts a server of its own at MASTER_PORT needs \
             \"rank0\". So does one whose MASTER_ADDR or MASTER_PORT is set with -x, and there it is the default.",
            choices::TORCH_STORE,
        ),
    ];
    args.push(
        option(
            "error-file",
            "FILE",
            heading,
            "Where torch writes the exception of a rank",
            "Sets TORCHELASTIC_ERROR_FILE for torch's @record, and makes the directories of the files. The default is a file in the job's private \
             directory, which is read for the report and removed. Fields are those of --log-dir.",
        )
        .value_hint(clap::ValueHint::FilePath),
    );
    args.push(option(
        "preload",
        "MODULES",
        heading,
        "Import these Python modules once, and fork the ranks",
        "One interpreter on each node imports the modules, such as torch,numpy, before the first rank starts, and each rank is forked from it: at the \
         start, and at every restart. The program is not changed. \"auto\" imports what the files of the program import; \"no\", the default, \
         starts each rank by itself. Where it cannot be done a line says why, and the ranks start as without it.",
    ));
    args.extend(switch(
        "tf-config",
        "no-tf-config",
        heading,
        "Set TF_CONFIG for TensorFlow",
        "Each rank is a worker of the cluster, on a port of its own that is held for it until the job ends. torch and JAX \
         programs need no option.",
    ));
    args
}
