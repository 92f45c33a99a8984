//! Checks that the libraries build with the oldest Rust that they support. Debian trixie has that
//! compiler. It is unpacked below the target directory, together with its C library, and passed to
//! cargo as `RUSTC`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use uverbs_kernel_guests::{Packages, target_directory};

const RELEASE: &str = "trixie";
/// The compiler and the libraries that it loads. A check needs no linker.
const PACKAGES: [&str; 17] = [
    "rustc",
    "libstd-rust-1.85",
    "libstd-rust-dev",
    "libllvm19",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "zlib1g",
    "libzstd1",
    "libxml2",
    "libedit2",
    "libffi8",
    "liblzma5",
    "libbsd0",
    "libmd0",
    "libtinfo6",
    "libz3-4",
];
/// The crates that support it, with the workspace's `rust-version`.
const LIBRARIES: [&str; 9] = [
    "uverbs-uapi",
    "uverbs-mlx5-format",
    "uverbs-mlx5",
    "uverbs-mlx5-inspect",
    "uverbs-soft",
    "uverbs-soft-adapter",
    "uverbs-soft-pci",
    "uverbs",
    "uverbs-stream",
];

pub(crate) fn run() -> Result<()> {
    let root = target_directory().join("msrv");
    let tree = root.join("tree");
    Packages::open(&root)?.unpack(RELEASE, &PACKAGES, false, &tree)?;
    let compiler = wrapper(&root, &tree)?;
    check(&root, &compiler)
}

/// Creates a program that runs the unpacked compiler with its own C library.
fn wrapper(root: &Path, tree: &Path) -> Result<PathBuf> {
    let path = root.join("rustc");
    let tree = tree.display();
    fs::write(
        &path,
        format!(
            "#!/bin/sh\nexec {tree}/usr/lib64/ld-linux-x86-64.so.2 --library-path {tree}/usr/lib/x86_64-linux-gnu \
             {tree}/usr/bin/rustc --sysroot {tree}/usr \"$@\"\n"
        ),
    )?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn check(root: &Path, compiler: &Path) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["check", "--quiet", "--all-features"]);
    command.args(LIBRARIES.iter().flat_map(|library| ["-p", library]));
    command.env("RUSTC", compiler).env("CARGO_TARGET_DIR", root.join("build"));
    // A rustup proxy would use its own toolchain's rustdoc and flags with this compiler.
    command.env_remove("RUSTUP_TOOLCHAIN");
    let status = command.status().context("cargo is needed")?;
    ensure!(status.success(), "the libraries do not build with {}", version(compiler)?);
    println!("{} build with {}", LIBRARIES.join(", "), version(compiler)?);
    Ok(())
}

fn version(compiler: &Path) -> Result<String> {
    let output = Command::new(compiler).arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
