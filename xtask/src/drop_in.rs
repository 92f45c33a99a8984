//! `cargo xtask drop-in DIR`: libibverbs as files that programs built for rdma-core find.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use uverbs_kernel_guests::target_directory;

/// What programs ask for by name. All are one file: the loader knows it again by its inode, so a
/// process has it once.
const LINKS: [&str; 3] = ["libibverbs.so", "libmlx5.so.1", "libmlx5.so"];
const LIBRARY: &str = "libibverbs.so.1";
/// The versions that rdma-core 44's files have, which build systems ask for.
const PACKAGES: [(&str, &str, &str); 2] =
    [("libibverbs", "1.14.44.0", "RDMA verbs"), ("libmlx5", "1.24.44.0", "mlx5 direct verbs")];

/// Where the files go.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory for the libraries; made if it does not exist.
    directory: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = &options.directory;
    fs::create_dir_all(directory.join("pkgconfig")).context("making the directory")?;
    let directory = directory.canonicalize()?;
    let built = build()?;
    let library = directory.join(LIBRARY);
    let _ = fs::remove_file(&library);
    fs::copy(&built, &library).with_context(|| format!("copying {}", built.display()))?;
    for link in LINKS {
        let link = directory.join(link);
        let _ = fs::remove_file(&link);
        symlink(LIBRARY, &link)?;
    }
    for (name, version, description) in PACKAGES {
        let text = package(&directory, name, version, description);
        fs::write(directory.join("pkgconfig").join(format!("{name}.pc")), text)?;
    }
    let bytes = fs::metadata(&library)?.len();
    println!("{}: {} KiB", library.display(), bytes.div_ceil(1024));
    println!("run programs with LD_LIBRARY_PATH={}", directory.display());
    Ok(())
}

/// The shared object in release mode, without symbols; only its own symbols, so that nothing else
/// is built anew.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["rustc", "--release", "-p", "uverbs-capi", "--crate-type", "cdylib"])
        .args(["--", "-C", "strip=symbols"])
        .status()
        .context("running cargo")?;
    if !status.success() {
        bail!("cargo failed");
    }
    Ok(target_directory().join("release/libuverbs_capi.so"))
}

fn package(directory: &Path, name: &str, version: &str, description: &str) -> String {
    let directory = directory.display();
    let link = name.trim_start_matches("lib");
    format!(
        "libdir={directory}\n\nName: {name}\nDescription: {description}, by uverbs\nVersion: {version}\n\
         Libs: -L${{libdir}} -l{link}\nCflags:\n"
    )
}
