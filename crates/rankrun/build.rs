//! Links the unwinder into the program. As a shared library (`libgcc_s.so.1`) it costs each start of a process a library more: ten
//! system calls, and its look at the CPU, which a virtual machine answers slowly. The program needs it only for the backtrace of a
//! panic.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let variable = |name| std::env::var(name).unwrap_or_default();
    let is_gnu = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let linker = Some(variable("RUSTC_LINKER")).filter(|linker| !linker.is_empty()).unwrap_or_else(|| "cc".to_owned());
    if is_gnu && has_static_unwinder(&linker) {
        let directory = PathBuf::from(variable("OUT_DIR")).join("unwinder");
        // The linker takes this script for the library.
        std::fs::create_dir_all(&directory).expect("OUT_DIR can be written");
        std::fs::write(directory.join("libgcc_s.so"), "GROUP ( libgcc_eh.a -lgcc )\n").expect("OUT_DIR can be written");
        println!("cargo:rustc-link-search=native={}", directory.display());
    }
}

/// Whether the C compiler that links comes with `libgcc_eh.a`: gcc does, and clang if gcc is there. Others are left alone.
fn has_static_unwinder(linker: &str) -> bool {
    let output = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    output.is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout);
        // A name without a directory: it does not know such a file.
        output.status.success() && Path::new(path.trim()).is_absolute() && Path::new(path.trim()).exists()
    })
}
