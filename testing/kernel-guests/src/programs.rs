//! This project's own programs in the guest: test binaries and the command, with the libraries of
//! the host that built them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::initramfs::Initramfs;
use crate::suite::DROP_IN;

/// The programs' directory in the guest.
const HOME: &str = "host";

/// A built program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name without cargo's hash.
    pub(crate) name: String,
    path: PathBuf,
}

/// Builds the end-to-end tests of the library whose names match `pattern`.
pub(crate) fn build_tests(workspace: &Path, pattern: &str) -> Result<Vec<Program>> {
    let library =
        ["test", "--no-run", "--package", "uverbs", "--features", "soft", "--test", pattern];
    cargo(workspace, &library, "test")
}

/// Builds the end-to-end tests of the command.
pub(crate) fn build_command_tests(workspace: &Path) -> Result<Vec<Program>> {
    cargo(workspace, &COMMAND_TESTS, "test")
}

/// Builds the command, and the library with which it runs other programs. For a guest that measures
/// they are optimized, and the program that measures plain UDP is built, too.
pub(crate) fn build_command(workspace: &Path, optimized: bool) -> Result<Vec<Program>> {
    let build = |arguments: &[&'static str]| {
        let release = optimized.then_some("--release");
        let all: Vec<&str> = ["build"].iter().chain(&release).chain(arguments).copied().collect();
        cargo(workspace, &all, "bin")
    };
    let mut built = build(&["--package", "uverbs-cli", "--bins"])?;
    let command = built.first().context("no command was built")?;
    // Cargo puts the library into the directory of the command.
    let path = command.path.with_file_name(PRELOAD);
    build(&["--package", "uverbs-preload"])?;
    ensure!(path.is_file(), "{} was not built", path.display());
    built.push(Program { name: PRELOAD.to_owned(), path });
    if optimized {
        built.extend(cargo(workspace, &BARE_UDP, "example")?);
    }
    Ok(built)
}

/// Builds the library that replaces libibverbs and libmlx5, in `directory`, and returns its path.
/// Runs this program itself, as `cargo xtask drop-in` does.
pub(crate) fn build_drop_in(directory: &Path) -> Result<PathBuf> {
    let program = std::env::current_exe().context("this program's own file")?;
    let status = Command::new(program).arg("drop-in").arg(directory).status();
    ensure!(status.context("cargo xtask drop-in")?.success(), "cargo xtask drop-in failed");
    Ok(directory.join(IBVERBS))
}

/// Builds a C program of the drop-in's tests, in `directory`, for the guest's device and GID.
pub(crate) fn build_c(workspace: &Path, name: &str, directory: &Path) -> Result<Program> {
    let (source, path) = (workspace.join(format!("capi/tests/{name}.c")), directory.join(name));
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&path).arg(source).args(["-libverbs", "-lmlx5", "-lpthread"]);
    ensure!(compiler.status().context("cc")?.success(), "{name}.c cannot be compiled");
    Ok(Program { name: name.to_owned(), path })
}

const IBVERBS: &str = "libibverbs.so.1";

/// The C library that the guest gets with the drop-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropIn {
    /// The host's C library, which may be newer than the guest's.
    WithHostLibraries,
    /// None, because the guest's is newer.
    Alone,
}

/// Adds the drop-in to `archive`, in `/drop-in`.
pub(crate) fn add_drop_in(archive: &mut Initramfs, library: &Path, kind: DropIn) -> Result<()> {
    archive.copy(&format!("{DROP_IN}/{IBVERBS}"), library)?;
    archive.symlink(&format!("{DROP_IN}/libmlx5.so.1"), IBVERBS);
    match kind {
        DropIn::WithHostLibraries => add_libraries(archive, libraries_of(library)?),
        DropIn::Alone => Ok(()),
    }
}

/// The library of `uverbs run`.
pub(crate) const PRELOAD: &str = "libuverbs_preload.so";

/// All test files.
pub(crate) const ALL: &str = "*";

const BARE_UDP: [&str; 6] =
    ["build", "--release", "--package", "uverbs-soft-packet", "--example", "bare_udp"];

const COMMAND_TESTS: [&str; 6] =
    ["test", "--no-run", "--package", "uverbs-cli", "--test", "interoperation"];

fn cargo(workspace: &Path, arguments: &[&str], kind: &str) -> Result<Vec<Program>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace).args(arguments).args([
        "--message-format",
        "json-render-diagnostics",
        "--quiet",
    ]);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "cargo {} failed", arguments.join(" "));
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut programs: Vec<Program> =
        messages.lines().filter_map(|line| artifact(line, kind)).collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

fn artifact(line: &str, kind: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_wanted = target["kind"].as_array()?.iter().any(|found| found == kind);
    let path = message["executable"].as_str().filter(|_| is_wanted)?;
    Some(Program { name: target["name"].as_str()?.to_owned(), path: path.into() })
}

/// Adds programs to `archive` below `/host/bin`, and the host's libraries at their usual paths.
/// These replace libraries of the guest's packages, which are not newer; the guest's programs also
/// work with newer libraries.
pub(crate) fn add<'a>(
    archive: &mut Initramfs,
    programs: impl Iterator<Item = &'a Program>,
    directory: &Path,
) -> Result<()> {
    let mut libraries = BTreeSet::new();
    for program in programs {
        let path = format!("{HOME}/bin/{}", program.name);
        archive.copy(&path, &stripped(&program.path, directory)?)?;
        libraries.extend(libraries_of(&program.path)?);
    }
    add_libraries(archive, libraries)
}

fn add_libraries(
    archive: &mut Initramfs,
    libraries: impl IntoIterator<Item = PathBuf>,
) -> Result<()> {
    for library in libraries {
        archive.copy(library.to_string_lossy().trim_start_matches('/'), &library)?;
    }
    Ok(())
}

/// Copies a program to `directory` without its debugging information, which would fill the guest's
/// memory.
fn stripped(program: &Path, directory: &Path) -> Result<PathBuf> {
    let copy = directory.join("stripped");
    let status = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    ensure!(
        status.context("strip (of binutils) is needed")?.success(),
        "strip {}",
        program.display()
    );
    Ok(copy)
}

/// The paths of a program's libraries, from lines of `ldd`: `name => /path (address)` or `/path
/// (address)`.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words =
        text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(PathBuf::from).collect())
}
