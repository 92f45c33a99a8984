//! The directory that stands for sysfs while a program runs.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Outcome};

/// A directory of our own that goes when this value does.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> Outcome<Self> {
        let directory = std::env::temp_dir();
        for attempt in 0..u16::MAX {
            let name = format!("uverbs-run-{}-{attempt}", std::process::id());
            let path = directory.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    return made
                        .map(|()| Self { path })
                        .context(|| format!("no directory in {}", directory.display()));
                }
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists))
            .context(|| format!("no free name in {}", directory.display()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A process of the program's that lives on may still write into it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_all_that_is_in_it() {
        let (one, other) = (Scratch::new().expect("one"), Scratch::new().expect("other"));
        assert_ne!(one.path(), other.path());
        let path = one.path().to_owned();
        fs::write(path.join("file"), "text").expect("a file");
        drop(one);
        assert!(!path.exists());
    }
}
