//! `cargo xtask drop-in DIR`: builds libibverbs as files for programs that were built for
//! rdma-core.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use uverbs_kernel_guests::target_directory;

/// Other names of the library that programs use. All are links to one file, so that a process loads
/// it once: the loader recognizes it by its inode.
const LINKS: [&str; 3] = ["libibverbs.so", "libmlx5.so.1", "libmlx5.so"];
const LIBRARY: &str = "libibverbs.so.1";
const ARCHIVE: &str = "libibverbs.a";
/// The versions in rdma-core 44's pkg-config files, which build systems check.
const PACKAGES: [(&str, &str, &str); 2] =
    [("libibverbs", "1.14.44.0", "RDMA verbs"), ("libmlx5", "1.24.44.0", "mlx5 direct verbs")];

/// What to build, and its destination.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory for the libraries; created if it does not exist
    directory: PathBuf,
    /// Oldest glibc on which the libraries must run, for example 2.17; by default this machine's
    #[arg(long, value_name = "VERSION", value_parser = glibc)]
    glibc: Option<String>,
    /// Build for musl, as on Alpine
    #[arg(long, conflicts_with = "glibc")]
    musl: bool,
    /// Also build the archive libibverbs.a, for programs that are linked statically
    #[arg(long = "static")]
    archive: bool,
}

/// Checks a version such as `2.17`, the form that zig expects.
fn glibc(text: &str) -> Result<String, String> {
    let minor = text.strip_prefix("2.").and_then(|minor| minor.parse::<u32>().ok());
    match minor {
        Some(minor) if minor >= 17 => Ok(text.to_owned()),
        Some(_) => Err("Rust's standard library needs 2.17".to_owned()),
        None => Err("expected 2.MINOR, for example 2.17".to_owned()),
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = &options.directory;
    fs::create_dir_all(directory.join("pkgconfig"))
        .with_context(|| format!("making the directory {}", directory.display()))?;
    let directory = directory.canonicalize()?;
    let library = copy_to(&build(options, "cdylib")?, &directory, LIBRARY)?;
    for link in LINKS {
        replace_link(LIBRARY, &directory.join(link))?;
    }
    if options.archive {
        let archive = copy_to(&build(options, "staticlib")?, &directory, ARCHIVE)?;
        strip(&archive)?;
        replace_link(ARCHIVE, &directory.join("libmlx5.a"))?;
        println!("{}", size(&archive)?);
    }
    for (name, version, description) in PACKAGES {
        let text = package(&directory, name, version, description);
        fs::write(directory.join("pkgconfig").join(format!("{name}.pc")), text)?;
    }
    println!("{}", size(&library)?);
    println!("run programs with LD_LIBRARY_PATH={}", directory.display());
    Ok(())
}

/// Copies a built library. Returns the path of the copy.
fn copy_to(built: &Path, directory: &Path, name: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    let _ = fs::remove_file(&path);
    fs::copy(built, &path).with_context(|| format!("copying {}", built.display()))?;
    Ok(path)
}

fn replace_link(target: &str, link: &Path) -> Result<()> {
    let _ = fs::remove_file(link);
    symlink(target, link).with_context(|| format!("linking {}", link.display()))
}

fn size(path: &Path) -> Result<String> {
    let bytes = fs::metadata(path)?.len();
    Ok(format!("{}: {} KiB", path.display(), bytes.div_ceil(1024)))
}

/// Builds one kind of library in release mode. Only this kind, so that nothing else is rebuilt.
fn build(options: &Options, kind: &str) -> Result<PathBuf> {
    let target = target(options);
    let status = command(target.as_ref(), kind).status();
    let status = status.with_context(|| match target {
        None => "running cargo".to_owned(),
        Some(_) => "running cargo-zigbuild, which links for another C library than this machine's \
                    (pip install cargo-zigbuild ziglang)"
            .to_owned(),
    })?;
    if !status.success() {
        let hint = if options.musl {
            "; is the target there? (rustup target add …-linux-musl)"
        } else {
            ""
        };
        bail!("building the {kind} failed{hint}");
    }
    let name = if kind == "cdylib" { "libuverbs_capi.so" } else { "libuverbs_capi.a" };
    let directory = target.map(|(_, directory)| directory).unwrap_or_default();
    Ok(target_directory().join(directory).join("release").join(name))
}

/// The build command: cargo's own for this machine's C library, cargo-zigbuild's for others.
fn command(target: Option<&(String, String)>, kind: &str) -> Command {
    let mut command = match target {
        None => Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        Some(_) => Command::new("cargo-zigbuild"),
    };
    command.args(["rustc", "--release", "-p", "uverbs-capi", "--crate-type", kind]);
    if let Some((target, _)) = target {
        command.args(["--target", target]);
        // A shared object cannot contain a C library.
        command.env(
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS",
            "-Ctarget-feature=-crt-static",
        );
    }
    command.args(["--", "-C", "strip=symbols"]);
    if target.is_none() && kind == "cdylib" {
        // Merge functions with equal code, of which generics produce many. Exported functions keep
        // distinct addresses, and the library does not compare addresses of others. All linkers
        // that can link the library have the option: lld (rustc's own), mold and gold. GNU ld
        // cannot, because it refuses two version scripts.
        command.args(["-C", "link-arg=-Wl,--icf=all"]);
    }
    command
}

/// The target's name for cargo-zigbuild, and the name of its directory; `None` for this machine's
/// target.
fn target(options: &Options) -> Option<(String, String)> {
    let arch = std::env::consts::ARCH;
    if options.musl {
        let target = format!("{arch}-unknown-linux-musl");
        return Some((target.clone(), target));
    }
    let version = options.glibc.as_ref()?;
    let target = format!("{arch}-unknown-linux-gnu");
    Some((format!("{target}.{version}"), target))
}

/// Removes debug information from an archive, but not the symbols, which the linker needs.
fn strip(archive: &Path) -> Result<()> {
    let status = Command::new("strip").arg("--strip-debug").arg(archive).status();
    match status.context("running strip, of binutils")?.success() {
        true => Ok(()),
        false => bail!("strip failed"),
    }
}

fn package(directory: &Path, name: &str, version: &str, description: &str) -> String {
    let directory = directory.display();
    let link = name.trim_start_matches("lib");
    format!(
        "libdir={directory}\n\nName: {name}\nDescription: {description}, by uverbs\nVersion: {version}\n\
         Libs: -L${{libdir}} -l{link}\nLibs.private: -lpthread -ldl -lm\nCflags:\n"
    )
}
