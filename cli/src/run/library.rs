//! Where the preload library is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Context, Failure, Outcome};
use crate::output;

const NAME: &str = "libuverbs_preload.so";
/// Names the library, for those who keep it elsewhere.
const VARIABLE: &str = "UVERBS_PRELOAD";
/// The source tree that this command was built from.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The library: named by the environment, beside this executable, in the `lib` beside its directory, or built from the
/// source tree.
pub(super) fn find() -> Outcome<PathBuf> {
    let library = match std::env::var_os(VARIABLE) {
        Some(named) => existing(named.into())?,
        None => installed()?,
    };
    loadable(library)
}

fn existing(named: PathBuf) -> Outcome<PathBuf> {
    let path = std::path::absolute(&named).unwrap_or(named);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::failed(format!("{VARIABLE} names {}, which is no file", path.display())))
}

fn installed() -> Outcome<PathBuf> {
    let own = std::env::current_exe().context(|| "cannot tell where this command is".into())?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(NAME), directory.join("../lib").join(NAME)];
    match places.into_iter().find(|place| place.is_file()) {
        Some(library) => Ok(library),
        None => build(directory),
    }
}

/// Builds the library beside an executable that cargo has put into `directory`.
fn build(directory: &Path) -> Outcome<PathBuf> {
    let manifest = Path::new(CHECKOUT).join("Cargo.toml");
    let missing = || {
        Failure::failed(format!(
            "{NAME} is not beside this command in {} (cargo build --release -p uverbs-preload makes it; {VARIABLE} names it)",
            directory.display()
        ))
    };
    if !Path::new(CHECKOUT).join("preload/Cargo.toml").is_file() {
        return Err(missing());
    }
    let profile = directory.file_name().and_then(|name| name.to_str());
    let (Some(profile @ ("debug" | "release")), Some(target)) = (profile, directory.parent())
    else {
        return Err(missing());
    };
    output::remark(format_args!("uverbs: building {NAME}, this once"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "-p", "uverbs-preload", "--manifest-path"]).arg(manifest);
    cargo.arg("--target-dir").arg(target);
    if profile == "release" {
        cargo.arg("--release");
    }
    let status = cargo.status().context(|| format!("cannot build {NAME}: no cargo"))?;
    let library = directory.join(NAME);
    if status.success() && library.is_file() { Ok(library) } else { Err(missing()) }
}

/// `LD_PRELOAD` is a list whose separators cannot be quoted.
fn loadable(library: PathBuf) -> Outcome<PathBuf> {
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(Failure::failed(format!(
            "LD_PRELOAD cannot name {}, which has a blank or a colon in it",
            library.display()
        )));
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_of_the_list_are_refused() {
        assert!(loadable("/usr/lib/a.so".into()).is_ok());
        assert!(loadable("/home/a b/a.so".into()).is_err());
        assert!(loadable("/home/a:b/a.so".into()).is_err());
    }
}
