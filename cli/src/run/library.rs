//! The path of the preload library.

use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Outcome};

const NAME: &str = "libuverbs_preload.so";
/// The environment variable with the library's path, if it is elsewhere.
const VARIABLE: &str = "UVERBS_PRELOAD";

/// Finds the library: at the path in the environment variable, in the executable's directory, or in
/// the directory `lib` beside that. It is not searched elsewhere, and never built, so that the
/// program runs the library that was installed with this command.
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
    Err(Failure::failed(format!("{VARIABLE} names {}, which is not a file", path.display())))
}

fn installed() -> Outcome<PathBuf> {
    let own = std::env::current_exe().context(|| "cannot tell where this command is".into())?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(NAME), directory.join("../lib").join(NAME)];
    match places.into_iter().find(|place| place.is_file()) {
        Some(library) => Ok(library),
        None => Err(Failure::failed(format!(
            "{NAME} is not beside this command: neither {} nor {} has it, and {VARIABLE} names no \
             other place; in a clone of the repository, cargo build --release -p uverbs-preload \
             makes target/release/{NAME}: copy it there or name it in {VARIABLE}",
            directory.display(),
            directory.join("../lib").display()
        ))),
    }
}

/// Fails for a path with a separator of `LD_PRELOAD`, which cannot be quoted.
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
