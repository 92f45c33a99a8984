//! The library under test, and a directory from which programs load it.
#![allow(dead_code, reason = "not every test needs all of it")]

pub(crate) mod pair;
pub(crate) mod port;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Reports that a program is missing. The test is skipped, but fails in CI.
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    assert!(std::env::var_os("CI").is_none(), "{reason}");
}

/// The shared object, which cargo puts beside the tests.
pub(crate) fn path() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let places = own.ancestors().skip(1).take(2);
    places
        .map(|place| place.join("libuverbs_capi.so"))
        .find(|library| library.exists())
        .expect("libuverbs_capi.so beside the test")
}

/// A directory with the library under the names that programs load.
pub(crate) struct DropIn(PathBuf);

impl DropIn {
    /// Makes the directory; `name` keeps tests of one process apart.
    pub(crate) fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("uverbs-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["libibverbs.so.1", "libibverbs.so", "libmlx5.so.1", "libmlx5.so"] {
            std::os::unix::fs::symlink(path(), directory.join(name)).unwrap();
        }
        Self(directory)
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// `program` with this library in front of the system's, on the software device; `None` if it
    /// is not installed.
    pub(crate) fn command(&self, program: &str) -> Option<Command> {
        let found = std::env::split_paths(&std::env::var_os("PATH")?)
            .map(|directory| directory.join(program))
            .find(|path| path.is_file())?;
        let mut command = Command::new(found);
        command
            .env("LD_LIBRARY_PATH", &self.0)
            .env("UVERBS_DEVICE", "soft")
            .env("UVERBS_ERRORS", "1");
        Some(command)
    }
}

impl Drop for DropIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles a C program into the directory; `None` without a compiler or the header.
pub(crate) fn compiled(drop_in: &DropIn, source: &str, libraries: &[&str]) -> Option<PathBuf> {
    let program = drop_in.path().join("program");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-Wall", "-Wno-unused-function", "-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(path);
    compiler.arg("-L").arg(drop_in.path()).args(libraries);
    let output = compiler.output().ok()?;
    if output.status.success() {
        return Some(program);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let header = ["infiniband/verbs.h", "infiniband/mlx5dv.h"];
    assert!(header.iter().any(|name| text.contains(&format!("{name}: No such file"))), "{text}");
    None
}
