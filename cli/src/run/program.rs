//! The program to run: finding it, and whether the preload library can be loaded into it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// How many interpreters of interpreters are followed, about as many as in the kernel
/// (`BINPRM_MAX_RECURSION` of fs/exec.c).
const MAX_INTERPRETERS: u32 = 4;

/// Finds the program as a shell would. Fails, with the reason, if the library cannot be loaded into
/// it.
pub(super) fn find(name: &OsStr) -> Outcome<PathBuf> {
    let path = look_up(name).ok_or_else(|| Failure::usage(why_not(Path::new(name))))?;
    check(&path, MAX_INTERPRETERS)?;
    Ok(path)
}

fn look_up(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|p| is_program(p))
}

/// Why there is no such program.
fn why_not(name: &Path) -> String {
    let shown = name.display();
    match fs::metadata(name) {
        Ok(data) if data.is_dir() => format!("{shown} is a directory, not a program"),
        Ok(_) if !name.as_os_str().as_bytes().contains(&b'/') => {
            format!("no program {shown} in PATH (./{shown} is the file here)")
        }
        Ok(_) => format!("{shown} is not executable (chmod +x {shown})"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("no program {shown}"),
        Err(error) => format!("no program {shown}: {error}"),
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn check(path: &Path, depth: u32) -> Outcome {
    let hindrance = match start_of(path) {
        Some(start) if start.starts_with(b"#!") && depth > 0 => {
            return interpreter(&start).map_or(Ok(()), |next| check(&next, depth - 1));
        }
        Some(start) => hindrance(&start),
        // An unreadable file may still be executable.
        None => None,
    };
    let hindrance = hindrance.filter(|why| *why != STATIC || !is_loader(path));
    let hindrance = hindrance.or_else(|| is_privileged(path).then_some(PRIVILEGED));
    hindrance.map_or(Ok(()), |why| Err(Failure::failed(format!("{} {why}", path.display()))))
}

const STATIC: &str = "is linked statically, so no library can be loaded in front of it";
const FOREIGN: &str = "is a program for another architecture than this command";
const MUSL: &str = "uses musl, and the preload library is made for the GNU C library";
const PRIVILEGED: &str = "is set-user-ID or set-group-ID, for which the loader ignores LD_PRELOAD";

/// Bytes of a file that contain the program headers of every known linker.
const START: u64 = 64 << 10;

fn start_of(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(START).read_to_end(&mut start).ok()?;
    Some(start)
}

fn interpreter(script: &[u8]) -> Option<PathBuf> {
    let line = script.get(2..)?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    (!word.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(word)))
}

/// Whether the program is the dynamic loader, which has no loader itself but loads the libraries in
/// `LD_PRELOAD` when it is run as a program.
fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

fn is_privileged(path: &Path) -> bool {
    let Ok(data) = fs::metadata(path) else { return false };
    let changes_user = data.mode() & 0o4000 != 0 && data.uid() != nix::unistd::getuid().as_raw();
    let changes_group = data.mode() & 0o2000 != 0 && data.gid() != nix::unistd::getgid().as_raw();
    changes_user || changes_group
}

/// Why the library cannot be loaded into an ELF file; `None` if it can, or for other files.
fn hindrance(file: &[u8]) -> Option<&'static str> {
    if !file.starts_with(b"\x7fELF") {
        return None;
    }
    if file.get(4..6) != Some(&[CLASS_64, LITTLE_ENDIAN]) || number(file, 18, 2)? != MACHINE {
        return Some(FOREIGN);
    }
    match loader(file) {
        None => Some(STATIC),
        Some(loader) if loader.windows(4).any(|word| word == b"musl") => Some(MUSL),
        Some(_) => None,
    }
}

const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
/// `EM_X86_64` or `EM_AARCH64`.
const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const PT_INTERP: u64 = 3;

/// The path of the dynamic loader: the segment `PT_INTERP`. Offsets are those of `Elf64_Ehdr` and
/// `Elf64_Phdr`.
fn loader(file: &[u8]) -> Option<&[u8]> {
    let (table, size, count) = (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?);
    let entry = |index: u64| usize::try_from(table.checked_add(index * size)?).ok();
    let segment =
        (0..count).filter_map(entry).find(|at| number(file, *at, 4) == Some(PT_INTERP))?;
    let start = usize::try_from(number(file, segment.checked_add(8)?, 8)?).ok()?;
    let length = usize::try_from(number(file, segment.checked_add(32)?, 8)?).ok()?;
    // If the path is beyond the part that was read, the program is still dynamic.
    Some(file.get(start..start.checked_add(length)?).unwrap_or_default())
}

fn number(file: &[u8], at: usize, size: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(file.get(at..at.checked_add(size)?)?);
    Some(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program() {
        let own = std::env::current_exe().expect("a path");
        assert!(check(&own, 0).is_ok());
    }

    #[test]
    fn what_is_no_program_is_told_apart() {
        let why = |name: &str| find(OsStr::new(name)).expect_err("no program").to_string();
        assert_eq!(why("/nonexistent/program"), "no program /nonexistent/program");
        assert_eq!(why("/proc"), "/proc is a directory, not a program");
        assert_eq!(
            why("/proc/self/maps"),
            "/proc/self/maps is not executable (chmod +x /proc/self/maps)"
        );
        assert_eq!(
            why("Cargo.toml"),
            "no program Cargo.toml in PATH (./Cargo.toml is the file here)"
        );
        assert!(
            why("/proc/self/maps/x").contains("Not a directory"),
            "{}",
            why("/proc/self/maps/x")
        );
    }

    #[test]
    fn an_elf_file_without_a_loader_is_static() {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = MACHINE as u8;
        assert_eq!(hindrance(&file), Some(STATIC));
        file[18] = 3;
        assert_eq!(hindrance(&file), Some(FOREIGN));
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        assert_eq!(interpreter(b"#! /bin/sh -e\ntrue"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(hindrance(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn any_bytes_are_survived() {
        for length in 0..64 {
            let mut file = vec![0xff; length];
            file.iter_mut().zip(b"\x7fELF\x02\x01").for_each(|(byte, magic)| *byte = *magic);
            let _ = hindrance(&file);
        }
    }
}
