//! `cargo xtask drop-in DIR`: libibverbs as files that programs built for rdma-core find.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use uverbs_kernel_guests::target_directory;

/// Other names by which programs ask for the library. All lead to one file: the loader recognizes
/// it by its inode, so a process loads it once.
const LINKS: [&str; 3] = ["libibverbs.so", "libmlx5.so.1", "libmlx5.so"];
const LIBRARY: &str = "libibverbs.so.1";
const ARCHIVE: &str = "libibverbs.a";
/// The versions that rdma-core 44's files have, which build systems ask for.
const PACKAGES: [(&str, &str, &str); 2] =
    [("libibverbs", "1.14.44.0", "RDMA verbs"), ("libmlx5", "1.24.44.0", "mlx5 direct verbs")];

/// What is built, and where it goes.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory for the libraries; made if it does not exist
    directory: PathBuf,
    /// Oldest glibc on which the libraries are to run, for example 2.17; this machine's otherwise
    #[arg(long, value_name = "VERSION", value_parser = glibc)]
    glibc: Option<String>,
    /// For musl, as on Alpine
    #[arg(long, conflicts_with = "glibc")]
    musl: bool,
    /// The archive libibverbs.a too, for programs that are linked statically
    #[arg(long = "static")]
    archive: bool,
}

/// `2.17`, as zig takes it.
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

/// Builds one kind of library in release mode; only that kind, so that nothing else is built anew.
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

/// The command that builds: cargo's own for this machine's C library, cargo-zigbuild for others.
fn command(target: Option<&(String, String)>, kind: &str) -> Command {
    let mut command = match target {
        None => Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        Some(_) => Command::new("cargo-zigbuild"),
    };
    command.args(["rustc", "--release", "-p", "uverbs-capi", "--crate-type", kind]);
    if let Some((target, _)) = target {
        command.args(["--target", target]);
        // A shared object cannot have a C library of its own.
        command.env(
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS",
            "-Ctarget-feature=-crt-static",
        );
    }
    command.args(["--", "-C", "strip=symbols"]);
    if target.is_none() && kind == "cdylib" {
        // One copy of functions with equal code, of which generic functions have many. Each
        // exported name has an address of its own, and the library compares no addresses of
        // functions. The linkers that can link the library know the option: lld, which is rustc's
        // own, mold and gold. GNU ld refuses two version scripts.
        command.args(["-C", "link-arg=-Wl,--icf=all"]);
    }
    command
}

/// The target as cargo-zigbuild names it, and the name of its directory; none for this machine's.
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

/// Takes debug information out of an archive; names stay, the linker needs them.
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
